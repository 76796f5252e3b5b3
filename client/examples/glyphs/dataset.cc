#include "client/examples/glyphs/dataset.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/examples/glyphs/random.h"

namespace glyphs {
namespace {

constexpr int kMinFonts = 3;

absl::StatusOr<std::unique_ptr<Font>> OpenFont(const FontFile& file, const std::string& font_dir) {
  absl::StatusOr<std::string> path = FindFont(file, font_dir);
  if (!path.ok()) return path.status();
  return Font::Open(*path);
}

absl::StatusOr<std::vector<std::unique_ptr<Font>>> OpenTrainingFonts(const std::string& font_dir) {
  std::vector<std::unique_ptr<Font>> fonts;
  for (const FontFile& file : TrainingFonts()) {
    absl::StatusOr<std::unique_ptr<Font>> font = OpenFont(file, font_dir);
    if (!font.ok()) return font.status();
    fonts.push_back(*std::move(font));
  }
  return fonts;
}

std::vector<char32_t> CommonCharacters(const std::vector<std::unique_ptr<Font>>& fonts, int64_t max_classes) {
  std::vector<char32_t> characters;
  for (char32_t character = kFirstCharacter; character <= kLastCharacter; ++character) {
    if (max_classes > 0 && static_cast<int64_t>(characters.size()) == max_classes) break;
    int having = 0;
    for (const auto& font : fonts) having += font->Has(character) ? 1 : 0;
    if (having >= kMinFonts) characters.push_back(character);
  }
  return characters;
}

void AppendFont(Font& font, const std::vector<char32_t>& characters, GlyphSet& set) {
  std::array<uint8_t, kPixels> pixels;
  for (size_t label = 0; label < characters.size(); ++label) {
    if (!font.Render(characters[label], pixels.data())) continue;
    set.pixels.insert(set.pixels.end(), pixels.begin(), pixels.end());
    set.labels.push_back(static_cast<int64_t>(label));
  }
}

}  // namespace

absl::StatusOr<std::vector<char32_t>> ClassCharacters(const std::string& font_dir, int64_t max_classes) {
  auto fonts = OpenTrainingFonts(font_dir);
  if (!fonts.ok()) return fonts.status();
  return CommonCharacters(*fonts, max_classes);
}

absl::StatusOr<Dataset> RenderDataset(const std::string& font_dir, int64_t max_classes,
                                      const std::function<void(const std::string&)>& on_font) {
  auto fonts = OpenTrainingFonts(font_dir);
  if (!fonts.ok()) return fonts.status();
  auto held_out = OpenFont(HeldOutFont(), font_dir);
  if (!held_out.ok()) return held_out.status();
  Dataset dataset;
  dataset.characters = CommonCharacters(*fonts, max_classes);
  for (size_t i = 0; i < fonts->size(); ++i) {
    on_font(TrainingFonts()[i].name);
    AppendFont(*(*fonts)[i], dataset.characters, dataset.training);
  }
  on_font(HeldOutFont().name);
  AppendFont(**held_out, dataset.characters, dataset.held_out);
  return dataset;
}

void ShuffleLabels(GlyphSet& set, uint64_t seed) {
  Random random({seed, kShuffleLabelsStream});
  random.Shuffle(set.labels);
}

}  // namespace glyphs
