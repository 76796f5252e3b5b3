#include "client/examples/glyphs/fonts.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

// FreeType's own order: the first header defines the macros that name the others.
#include <ft2build.h>
#include FT_FREETYPE_H
#include FT_OUTLINE_H

namespace glyphs {
namespace {

constexpr double kBoxPixels = 28;
// Outlines in font units, so that hinting, embedded bitmaps and rounding to pixels play no part.
constexpr FT_Int32 kLoadFlags = FT_LOAD_NO_SCALE | FT_LOAD_NO_HINTING | FT_LOAD_NO_BITMAP;

FT_Pos Percentile(std::vector<FT_Pos>& values, int percent) {
  auto nth = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * percent / 100);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace

const std::vector<FontFile>& TrainingFonts() {
  static const auto* const fonts = new std::vector<FontFile>{
      {"WenQuanYi Micro Hei", "wqy-microhei.ttc", "fonts-wqy-microhei"},
      {"AR PL UMing", "uming.ttc", "fonts-arphic-uming"},
      {"AR PL UKai", "ukai.ttc", "fonts-arphic-ukai"},
      {"HanaMinA", "HanaMinA.ttf", "fonts-hanazono"},
      {"Unifont", "unifont.otf", "fonts-unifont"},
  };
  return *fonts;
}

const FontFile& HeldOutFont() {
  static const auto* const font = new FontFile{"WenQuanYi Zen Hei", "wqy-zenhei.ttc", "fonts-wqy-zenhei"};
  return *font;
}

absl::StatusOr<std::string> FindFont(const FontFile& font, const std::string& font_dir) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator walk(
      font_dir, std::filesystem::directory_options::skip_permission_denied, error);
  for (; !error && walk != std::filesystem::recursive_directory_iterator(); walk.increment(error)) {
    if (walk->path().filename() == font.file) return walk->path().string();
  }
  return absl::NotFoundError(absl::StrCat("font ", font.file, " (", font.name, ") is not below ", font_dir,
                                          ": install it with 'apt-get install ", font.package,
                                          "' or name its folder with --font_dir"));
}

struct Font::Face {
  FT_Library library = nullptr;
  FT_Face face = nullptr;
  FT_Matrix scale{};  // font units to 1/64 pixels
  FT_Vector shift{};  // 1/64 pixels, after scaling

  ~Face() {
    if (face != nullptr) FT_Done_Face(face);
    if (library != nullptr) FT_Done_FreeType(library);
  }

  FT_Outline* Outline(char32_t character) {
    const FT_UInt index = FT_Get_Char_Index(face, character);
    if (index == 0 || FT_Load_Glyph(face, index, kLoadFlags) != 0) return nullptr;
    FT_GlyphSlot slot = face->glyph;
    if (slot->format != FT_GLYPH_FORMAT_OUTLINE || slot->outline.n_points == 0) return nullptr;
    return &slot->outline;
  }
};

Font::Font(std::unique_ptr<Face> face) : face_(std::move(face)) {}
Font::~Font() = default;

absl::StatusOr<std::unique_ptr<Font>> Font::Open(const std::string& path) {
  auto face = std::make_unique<Face>();
  if (FT_Init_FreeType(&face->library) != 0) return absl::InternalError("FreeType does not start");
  if (FT_New_Face(face->library, path.c_str(), /*face_index=*/0, &face->face) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " cannot be read as a font"));
  }
  std::unique_ptr<Font> font(new Font(std::move(face)));
  if (!font->FitBox()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no outlines between U+4E00 and U+9FFF"));
  }
  return font;
}

bool Font::FitBox() {
  std::vector<FT_Pos> left, bottom, right, top;
  for (char32_t character = kFirstCharacter; character <= kLastCharacter; ++character) {
    FT_Outline* outline = face_->Outline(character);
    if (outline == nullptr) continue;
    FT_BBox box;
    FT_Outline_Get_CBox(outline, &box);
    left.push_back(box.xMin);
    bottom.push_back(box.yMin);
    right.push_back(box.xMax);
    top.push_back(box.yMax);
  }
  if (left.empty()) return false;
  const FT_Pos x0 = Percentile(left, 10), x1 = Percentile(right, 90);
  const FT_Pos y0 = Percentile(bottom, 10), y1 = Percentile(top, 90);
  const FT_Pos size = std::max(x1 - x0, y1 - y0);
  if (size <= 0) return false;
  const double scale = kBoxPixels * 64 / static_cast<double>(size);
  face_->scale.xx = face_->scale.yy = static_cast<FT_Fixed>(scale * 0x10000);
  const auto centred = [&](FT_Pos low, FT_Pos high) {
    return static_cast<FT_Pos>(kSide * 32 - scale * static_cast<double>(low + high) / 2);
  };
  face_->shift = {centred(x0, x1), centred(y0, y1)};
  return true;
}

bool Font::Has(char32_t character) const { return FT_Get_Char_Index(face_->face, character) != 0; }

bool Font::Render(char32_t character, uint8_t* pixels) {
  std::memset(pixels, 0, kPixels);
  FT_Outline* outline = face_->Outline(character);
  if (outline == nullptr) return false;
  FT_Outline_Transform(outline, &face_->scale);
  FT_Outline_Translate(outline, face_->shift.x, face_->shift.y);
  FT_Bitmap bitmap{};
  bitmap.rows = bitmap.width = bitmap.pitch = kSide;
  bitmap.buffer = pixels;
  bitmap.num_grays = 256;
  bitmap.pixel_mode = FT_PIXEL_MODE_GRAY;
  if (FT_Outline_Get_Bitmap(face_->library, outline, &bitmap) != 0) return false;
  return std::any_of(pixels, pixels + kPixels, [](uint8_t value) { return value != 0; });
}

}  // namespace glyphs
