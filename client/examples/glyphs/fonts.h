// The fonts of the example and their rendering with FreeType.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_FONTS_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_FONTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace glyphs {

inline constexpr int kSide = 32;  // a picture is [kSide, kSide], row-major
inline constexpr int kPixels = kSide * kSide;
inline constexpr char32_t kFirstCharacter = 0x4E00;  // the CJK unified ideographs
inline constexpr char32_t kLastCharacter = 0x9FFF;

struct FontFile {
  std::string name;     // for people
  std::string file;     // its first face is used
  std::string package;  // Debian package that installs it
};

// In the order in which their pictures stand in the training set.
const std::vector<FontFile>& TrainingFonts();
// Never seen in training.
const FontFile& HeldOutFont();

// Full path of a font anywhere below `font_dir`. NOT_FOUND names the package to install.
absl::StatusOr<std::string> FindFont(const FontFile& font, const std::string& font_dir);

// The first face of an outline font. All its characters share one scale: the box between the 10th percentile
// of the outlines' lower edges and the 90th of their upper ones is fitted into 28 pixels and centred. Not
// thread-safe; different fonts may be used on different threads.
class Font {
 public:
  // NOT_FOUND or INVALID_ARGUMENT when the file cannot be used.
  static absl::StatusOr<std::unique_ptr<Font>> Open(const std::string& path);
  ~Font();
  Font(const Font&) = delete;
  Font& operator=(const Font&) = delete;

  bool Has(char32_t character) const;
  // Overwrites `pixels` [kSide, kSide], 0 paper to 255 ink, unhinted. False where nothing was drawn.
  bool Render(char32_t character, uint8_t* pixels);

 private:
  struct Face;
  explicit Font(std::unique_ptr<Face> face);
  bool FitBox();
  std::unique_ptr<Face> face_;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_FONTS_H_
