// The parts of the example trainer that need neither a cluster nor libtorch.
#include <ccs/v1/model.pb.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "client/examples/glyphs/augment.h"
#include "client/examples/glyphs/backbone_files.h"
#include "client/examples/glyphs/dataset.h"
#include "client/examples/glyphs/fonts.h"
#include "client/examples/glyphs/options.h"
#include "client/examples/glyphs/progress.h"
#include "client/examples/glyphs/random.h"
#include "client/examples/glyphs/schedule.h"

namespace glyphs {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFontDir[] = "/usr/share/fonts";

Dataset FirstClasses(int64_t count) {
  auto dataset = RenderDataset(kFontDir, count, [](const std::string&) {});
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

// ---------------------------------------------------------------- dataset

TEST(GlyphDatasetTest, HasTheClassesThatThreeFontsShare) {
  const auto characters = ClassCharacters(kFontDir, 0);
  ASSERT_TRUE(characters.ok()) << characters.status();
  EXPECT_EQ(characters->size(), 20932u);
  EXPECT_TRUE(std::is_sorted(characters->begin(), characters->end()));
  EXPECT_EQ(characters->front(), kFirstCharacter);
}

TEST(GlyphDatasetTest, ALimitTakesTheFirstClasses) {
  const auto all = ClassCharacters(kFontDir, 0), some = ClassCharacters(kFontDir, 7);
  ASSERT_TRUE(all.ok() && some.ok());
  EXPECT_EQ(*some, std::vector(all->begin(), all->begin() + 7));
}

TEST(GlyphDatasetTest, RendersTheSamePicturesAgainWhateverTheLimit) {
  const Dataset few = FirstClasses(20), more = FirstClasses(40);
  ASSERT_EQ(few.held_out.size(), 20);
  EXPECT_TRUE(
      std::equal(few.held_out.pixels.begin(), few.held_out.pixels.end(), more.held_out.pixels.begin()));
  const auto first_font = few.training.pixels.begin();
  EXPECT_TRUE(std::equal(first_font, first_font + 20 * kPixels, more.training.pixels.begin()));
}

TEST(GlyphDatasetTest, PicturesFillTheFrameWithoutTouchingMuchOfItsEdge) {
  const Dataset dataset = FirstClasses(60);
  std::vector<double> ink(kPixels);
  for (int64_t i = 0; i < dataset.training.size(); ++i) {
    for (int p = 0; p < kPixels; ++p) ink[static_cast<size_t>(p)] += dataset.training.picture(i)[p];
  }
  double total = 0, x_mean = 0, y_mean = 0, edge = 0;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double value = ink[y * kSide + x];
      total += value;
      x_mean += value * x;
      y_mean += value * y;
      if (x == 0 || y == 0 || x == kSide - 1 || y == kSide - 1) edge += value;
    }
  }
  EXPECT_NEAR(x_mean / total, (kSide - 1) / 2.0, 1.5);
  EXPECT_NEAR(y_mean / total, (kSide - 1) / 2.0, 1.5);
  EXPECT_GT(total / (255.0 * kPixels * static_cast<double>(dataset.training.size())), 0.1);
  EXPECT_LT(edge / total, 0.02);
}

TEST(GlyphDatasetTest, PicturesStandUpright) {
  // U+4E01 is a bar at the top above a stem with a hook to the left.
  auto path = FindFont(HeldOutFont(), kFontDir);
  ASSERT_TRUE(path.ok()) << path.status();
  auto font = Font::Open(*path);
  ASSERT_TRUE(font.ok()) << font.status();
  std::vector<uint8_t> pixels(kPixels);
  ASSERT_TRUE((*font)->Render(0x4E01, pixels.data()));
  const auto row_ink = [&](int first, int last) {
    return std::accumulate(pixels.begin() + first * kSide, pixels.begin() + last * kSide, 0);
  };
  EXPECT_GT(row_ink(0, kSide / 3), 2 * row_ink(kSide / 3, 2 * kSide / 3));
}

TEST(GlyphDatasetTest, ACharacterThatAFontLacksIsNotRendered) {
  auto path = FindFont(HeldOutFont(), kFontDir);
  ASSERT_TRUE(path.ok()) << path.status();
  auto font = Font::Open(*path);
  ASSERT_TRUE(font.ok()) << font.status();
  std::vector<uint8_t> pixels(kPixels, 1);
  EXPECT_FALSE((*font)->Has(0x10FFFF));
  EXPECT_FALSE((*font)->Render(0x10FFFF, pixels.data()));
}

TEST(GlyphDatasetTest, AMissingFontIsNamedWithItsPackage) {
  const std::string empty = testing::TempDir() + "glyphs_no_fonts";
  std::filesystem::create_directories(empty);
  const auto characters = ClassCharacters(empty, 0);
  EXPECT_EQ(characters.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(characters.status().message()), HasSubstr("apt-get install fonts-wqy-microhei"));
}

TEST(GlyphDatasetTest, ShuffledLabelsAreTheSameLabelsElsewhere) {
  GlyphSet set;
  set.labels.resize(1000);
  std::iota(set.labels.begin(), set.labels.end(), 0);
  const std::vector<int64_t> before = set.labels;
  ShuffleLabels(set, 1);
  EXPECT_NE(set.labels, before);
  std::sort(set.labels.begin(), set.labels.end());
  EXPECT_EQ(set.labels, before);
}

// ---------------------------------------------------------------- augmentation

class AugmentTest : public testing::Test {
 protected:
  AugmentTest() {
    set_.labels = {0, 1};
    set_.pixels.assign(2 * kPixels, 0);
    for (int y = 8; y < 24; ++y) {
      for (int x = 8; x < 24; ++x) set_.pixels[y * kSide + x] = 255;
    }
  }
  GlyphSet set_;  // a square, then blank paper
};

TEST_F(AugmentTest, APlainBatchIsThePictureFromZeroToOne) {
  const std::vector<float> batch = PlainBatch(set_, {1, 0});
  EXPECT_THAT(std::vector(batch.begin(), batch.begin() + kPixels), Each(0.0f));
  EXPECT_EQ(batch[kPixels + 8 * kSide + 8], 1.0f);
  EXPECT_EQ(batch[kPixels + 8 * kSide + 7], 0.0f);
}

TEST_F(AugmentTest, IsAPureFunctionOfSeedAndStep) {
  const std::vector<float> batch = AugmentedBatch(set_, {0, 0}, 1, 5);
  EXPECT_EQ(batch, AugmentedBatch(set_, {0, 0}, 1, 5));
  EXPECT_NE(batch, AugmentedBatch(set_, {0, 0}, 2, 5));
  EXPECT_NE(batch, AugmentedBatch(set_, {0, 0}, 1, 6));
  EXPECT_FALSE(std::equal(batch.begin(), batch.begin() + kPixels, batch.begin() + kPixels))
      << "two rows must not be changed alike";
}

TEST_F(AugmentTest, KeepsThePictureRecognisable) {
  const std::vector<float> batch = AugmentedBatch(set_, std::vector<int64_t>(50, 0), 1, 1);
  for (size_t row = 0; row < 50; ++row) {
    const auto at = [&](int y, int x) { return batch[row * kPixels + static_cast<size_t>(y * kSide + x)]; };
    EXPECT_GT(at(16, 16), 0.4f);
    EXPECT_LT(at(1, 1), 0.3f);
    EXPECT_LT(at(30, 30), 0.3f);
  }
}

TEST_F(AugmentTest, AddsNoiseOfTheStatedDeviation) {
  const std::vector<float> batch = AugmentedBatch(set_, std::vector<int64_t>(20, 1), 1, 1);
  double sum = 0, squares = 0;
  for (float value : batch) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(batch.size());
  EXPECT_NEAR(sum / count, 0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / count), 0.05, 0.002);
}

// ---------------------------------------------------------------- schedule

TEST(GlyphScheduleTest, CountsWholeBatches) {
  const Schedule schedule(99901, 256, 4);
  EXPECT_EQ(schedule.steps_per_epoch(), 390);
  EXPECT_EQ(schedule.num_steps(), 1560);
  EXPECT_EQ(schedule.epoch(1), 1);
  EXPECT_EQ(schedule.epoch(390), 1);
  EXPECT_EQ(schedule.epoch(391), 2);
}

TEST(GlyphScheduleTest, RateWarmsUpThenFallsAlongACosine) {
  const Schedule schedule(99901, 256, 4);
  EXPECT_NEAR(schedule.RateFactor(1), 0.01, 1e-4);
  EXPECT_NEAR(schedule.RateFactor(50), 0.5, 0.01);
  EXPECT_NEAR(schedule.RateFactor(781), 0.5, 1e-6);
  EXPECT_GT(schedule.RateFactor(1560), 0);
  EXPECT_LT(schedule.RateFactor(1560), 1e-5);
}

TEST(GlyphScheduleTest, ShortTrainingsWarmUpWithinTheirFirstEpoch) {
  const Schedule schedule(100, 10, 2);
  EXPECT_NEAR(schedule.RateFactor(1), 0.1, 1e-6);
  EXPECT_GT(schedule.RateFactor(10), 0.5);
}

TEST(GlyphScheduleTest, MarginRisesOverTheFirstEpochAndStays) {
  const Schedule schedule(1000, 10, 3);
  EXPECT_EQ(schedule.MarginFactor(1), 0);
  EXPECT_FLOAT_EQ(schedule.MarginFactor(51), 0.5f);
  EXPECT_EQ(schedule.MarginFactor(101), 1);
  EXPECT_EQ(schedule.MarginFactor(300), 1);
}

TEST(SampleOrderTest, AnEpochTakesEverySampleOnce) {
  SampleOrder order(100, 10, 1);
  std::set<int64_t> seen;
  for (int64_t step = 11; step <= 20; ++step) {
    for (int64_t index : order.Batch(step)) seen.insert(index);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(*seen.rbegin(), 99);
}

TEST(SampleOrderTest, AStepTakesTheSameSamplesWhereverTrainingStarted) {
  SampleOrder whole(105, 10, 1), resumed(105, 10, 1), other_seed(105, 10, 2);
  std::vector<int64_t> batch;
  for (int64_t step = 1; step <= 17; ++step) batch.assign(whole.Batch(step).begin(), whole.Batch(step).end());
  EXPECT_EQ(resumed.Batch(17), absl::MakeConstSpan(batch));
  EXPECT_NE(other_seed.Batch(17), absl::MakeConstSpan(batch));
  EXPECT_NE(resumed.Batch(7), absl::MakeConstSpan(batch)) << "epochs must not repeat each other's order";
}

// ---------------------------------------------------------------- backbone files

class BackboneFilesTest : public testing::Test {
 protected:
  BackboneFilesTest() { std::filesystem::remove_all(directory_); }
  ~BackboneFilesTest() override { std::filesystem::remove_all(directory_); }

  BackboneFiles Open() {
    auto files = BackboneFiles::Open(directory_);
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }
  static absl::Status Write(BackboneFiles& files, int64_t step) {
    return files.Write(step, [step](const std::string& path) {
      std::ofstream(path) << step;
      return absl::OkStatus();
    });
  }

  const std::string directory_ =
      testing::TempDir() + "glyphs_" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(BackboneFilesTest, KeepsTheNewestFew) {
  BackboneFiles files = Open();
  for (int64_t step : {200, 400, 600, 800, 1000, 1200}) ASSERT_TRUE(Write(files, step).ok());
  EXPECT_THAT(Open().Steps(), ElementsAre(400, 600, 800, 1000, 1200));
}

TEST_F(BackboneFilesTest, ResumesWithTheFileOfTheClustersStepAndDropsLaterOnes) {
  BackboneFiles files = Open();
  for (int64_t step : {200, 400, 600}) ASSERT_TRUE(Write(files, step).ok());
  const auto path = files.Resume(400);
  ASSERT_TRUE(path.ok()) << path.status();
  int64_t content = 0;
  std::ifstream(*path) >> content;
  EXPECT_EQ(content, 400);
  EXPECT_THAT(files.Steps(), ElementsAre(200, 400));
}

TEST_F(BackboneFilesTest, WithoutAMatchNamesBothPositionsAndKeepsTheFiles) {
  BackboneFiles files = Open();
  for (int64_t step : {200, 400}) ASSERT_TRUE(Write(files, step).ok());
  const auto path = files.Resume(300);
  EXPECT_EQ(path.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("the cluster is at step 300"));
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("steps 200, 400"));
  EXPECT_THAT(files.Steps(), ElementsAre(200, 400));
}

TEST_F(BackboneFilesTest, SaysWhenThereIsNoFileAtAll) {
  EXPECT_THAT(std::string(Open().Resume(300).status().message()), HasSubstr("no backbone file"));
}

TEST_F(BackboneFilesTest, AFailedWriteLeavesNothingBehind) {
  BackboneFiles files = Open();
  const absl::Status status = files.Write(200, [](const std::string& path) {
    std::ofstream(path) << "half";
    return absl::ResourceExhaustedError("disk full");
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("disk full"));
  EXPECT_THAT(files.Steps(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(BackboneFilesTest, IgnoresForeignAndUnfinishedFiles) {
  BackboneFiles files = Open();
  for (const char* name : {"backbone-7.pt.tmp", "backbone-x.pt", "notes.txt"}) {
    std::ofstream(directory_ + "/" + name) << "x";
  }
  EXPECT_THAT(files.Steps(), IsEmpty());
}

// ---------------------------------------------------------------- flags and progress

TEST(GlyphOptionsTest, FlagsFillTheOptions) {
  Options options;
  const std::vector<const char*> args = {"glyphs",   "--addresses", "a:1,b:2", "--output",        "out",
                                         "--resume", "--classes",   "500",     "--freeze_centres"};
  EXPECT_FALSE(ParseOptions(static_cast<int>(args.size()), args.data(), options).has_value());
  EXPECT_THAT(options.addresses, ElementsAre("a:1", "b:2"));
  EXPECT_TRUE(options.resume && options.freeze_centres);
  EXPECT_EQ(options.classes, 500);
  EXPECT_GE(options.threads, 1);
}

TEST(GlyphOptionsTest, ResumeNeedsADirectory) {
  Options options;
  const std::vector<const char*> args = {"glyphs", "--resume"};
  EXPECT_EQ(ParseOptions(static_cast<int>(args.size()), args.data(), options), 2);
}

TEST(GlyphOptionsTest, DescribesAModelSpecThatTheClusterReads) {
  Options options;
  options.seed = 9;
  ccs::v1::ModelSpec spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(ModelSpecText(options, 20932, 128), &spec));
  EXPECT_EQ(spec.num_classes(), 20932);
  EXPECT_EQ(spec.dim(), 128);
  EXPECT_FLOAT_EQ(spec.head().cosface().margin(), 0.2f);
  EXPECT_EQ(spec.head().scale(), 32);
  EXPECT_EQ(spec.seed(), 9u);
  EXPECT_EQ(spec.max_batch(), 256);
}

TEST(GlyphOptionsTest, ARunIsDescribedByWhatAResumedOneMustShare) {
  Options options, other;
  other.output = "elsewhere";
  EXPECT_EQ(RunDescription(options), RunDescription(other));
  other.seed = 2;
  EXPECT_NE(RunDescription(options), RunDescription(other));
}

TEST(ProgressTest, ALineSaysHowFarAndHowFast) {
  EXPECT_EQ(ProgressLine({.epoch = 2,
                          .epochs = 4,
                          .step = 512,
                          .num_steps = 1560,
                          .loss = 3.2141,
                          .samples_per_s = 7012.4,
                          .head_share = 0.312,
                          .eta_s = 125.2}),
            "epoch 2/4  step 512/1560  loss 3.214  7012 samples/s  head 31 %  ETA 2:05");
}

TEST(GlyphRandomTest, NormalDrawsHaveMeanZeroAndDeviationOne) {
  Random random({1});
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double value = random.Normal();
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.015);
  EXPECT_NEAR(std::sqrt(squares / kDraws), 1, 0.015);
}

TEST(GlyphRandomTest, KeysThatDifferInOnePartDiffer) {
  EXPECT_EQ(Random({1, 2})(), Random({1, 2})());
  EXPECT_NE(Random({1, 2})(), Random({2, 1})());
  EXPECT_NE(Random({1, 2})(), Random({1, 3})());
}

}  // namespace
}  // namespace glyphs
