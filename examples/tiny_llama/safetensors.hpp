// The safetensors file format: an eight-byte little-endian header length, a JSON header, then the tensors'
// bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tiny_llama {

enum class tensor_type : std::uint8_t { f32, f16, bf16 };

/// Where a tensor lies: byte offsets count from the end of the header. All of it is checked against the file.
struct tensor_entry {
  tensor_type type;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin, end;
};

/// An opened and fully validated header. Tensors are read one at a time, so that a large model is not held
/// twice. Everything throws model_error.
class safetensors_file {
public:
  static constexpr std::uint64_t max_header_bytes = 100'000'000;  ///< the format's own limit
  static constexpr std::size_t max_rank = 8;

  explicit safetensors_file(std::string path);

  std::string const& path() const { return path_; }
  std::map<std::string, tensor_entry> const& entries() const { return entries_; }
  /// What the header says beside the tensors.
  std::map<std::string, std::string> const& metadata() const { return metadata_; }
  bool contains(std::string const& name) const { return entries_.count(name) != 0; }

  /// Values of a tensor that must have exactly `shape`, row-major, widened to float. NaN and infinity are
  /// refused.
  std::vector<float> read(std::string const& name, std::vector<std::uint64_t> const& shape) const;

private:
  std::string path_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, tensor_entry> entries_;
  std::map<std::string, std::string> metadata_;
};

float half_to_float(std::uint16_t bits);
float bfloat16_to_float(std::uint16_t bits);

}  // namespace tiny_llama
