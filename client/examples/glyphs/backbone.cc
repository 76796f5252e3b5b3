#include "client/examples/glyphs/backbone.h"

#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <exception>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/examples/glyphs/fonts.h"
#include "client/examples/glyphs/product.h"

namespace glyphs {
namespace {

constexpr double kMomentum = 0.9;
constexpr double kWeightDecay = 5e-4;

// Over all values of an image, without bias.
struct LinearImpl : torch::nn::Module {
  LinearImpl(int64_t in, int64_t out)
      : weight(register_parameter(
            "weight", torch::nn::init::kaiming_uniform_(torch::empty({out, in}), /*a=*/std::sqrt(5.0)))) {}
  // Channels last within an image: the order in memory.
  torch::Tensor forward(const torch::Tensor& images) {
    return Product(images.permute({0, 2, 3, 1}).flatten(1), weight);
  }
  torch::Tensor weight;
};
TORCH_MODULE(Linear);

void AddConvBlock(torch::nn::SequentialImpl& network, int in, int out) {
  network.push_back(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1).bias(false)));
  network.push_back(torch::nn::BatchNorm2d(out));
  network.push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
}

torch::nn::Sequential Network() {
  torch::nn::Sequential network;
  network->push_back(torch::nn::PixelUnshuffle(2));
  AddConvBlock(*network, 4, 16);
  AddConvBlock(*network, 16, 16);
  network->push_back(torch::nn::MaxPool2d(2));
  AddConvBlock(*network, 16, 32);
  AddConvBlock(*network, 32, 32);
  network->push_back(torch::nn::MaxPool2d(2));
  AddConvBlock(*network, 32, 64);
  network->push_back(Linear(64 * 4 * 4, kDim));
  network->push_back(torch::nn::BatchNorm1d(kDim));
  return network;
}

torch::Tensor AsBatch(absl::Span<const float> pictures) {
  const int64_t rows = static_cast<int64_t>(pictures.size()) / kPixels;
  return torch::from_blob(const_cast<float*>(pictures.data()), {rows, 1, kSide, kSide});
}

}  // namespace

struct Backbone::State {
  torch::nn::Sequential network = Network();
  std::unique_ptr<torch::optim::SGD> optimizer = std::make_unique<torch::optim::SGD>(
      network->parameters(), torch::optim::SGDOptions(0).momentum(kMomentum).weight_decay(kWeightDecay));
  torch::Tensor features;  // of the last Forward, with its graph

  State() {
    for (torch::Tensor& weight : network->parameters()) {
      if (weight.dim() == 4) weight.set_data(weight.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }

  torch::Tensor Run(absl::Span<const float> pictures) {
    torch::Tensor input = AsBatch(pictures).contiguous(torch::MemoryFormat::ChannelsLast);
    return network->forward(input).contiguous();
  }
};

Backbone::Backbone(uint64_t seed, int threads) {
  at::set_num_threads(threads);
  torch::manual_seed(seed);
  state_ = std::make_unique<State>();
}

Backbone::~Backbone() = default;

absl::Span<const float> Backbone::Forward(absl::Span<const float> pictures) {
  state_->network->train();
  state_->features = state_->Run(pictures);
  return {state_->features.data_ptr<float>(), static_cast<size_t>(state_->features.numel())};
}

void Backbone::Backward(absl::Span<const float> feature_grad, float learning_rate) {
  auto& options = static_cast<torch::optim::SGDOptions&>(state_->optimizer->param_groups().front().options());
  options.lr(learning_rate);
  state_->optimizer->zero_grad();
  state_->features.backward(
      torch::from_blob(const_cast<float*>(feature_grad.data()), state_->features.sizes().vec()));
  state_->optimizer->step();
}

std::vector<float> Backbone::Embed(absl::Span<const float> pictures, Statistics statistics) {
  const torch::NoGradGuard no_grad;
  state_->network->train(statistics == Statistics::kOfBatch);
  const torch::Tensor features = torch::nn::functional::normalize(state_->Run(pictures)).contiguous();
  const float* data = features.data_ptr<float>();
  return {data, data + features.numel()};
}

absl::Status Backbone::Save(const std::string& path, const std::string& description) const {
  try {
    torch::serialize::OutputArchive archive, network, optimizer;
    state_->network->save(network);
    state_->optimizer->save(optimizer);
    archive.write("description", c10::IValue(description));
    archive.write("network", network);
    archive.write("optimizer", optimizer);
    archive.save_to(path);
  } catch (const std::exception& error) {
    return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status Backbone::Load(const std::string& path, const std::string& description) {
  try {
    torch::serialize::InputArchive archive, network, optimizer;
    archive.load_from(path);
    c10::IValue saved;
    archive.read("description", saved);
    if (saved.toStringRef() != description) {
      return absl::FailedPreconditionError(absl::StrCat(path, " belongs to a run with other flags: it has '",
                                                        saved.toStringRef(), "', this run has '", description,
                                                        "'"));
    }
    archive.read("network", network);
    archive.read("optimizer", optimizer);
    state_->network->load(network);
    state_->optimizer->load(optimizer);
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat("cannot read ", path, ": ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace glyphs
