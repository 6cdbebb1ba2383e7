#include "safetensors.hpp"

#include "error.hpp"
#include "files.hpp"
#include "json_text.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

namespace tiny_llama {
namespace {

std::uint64_t width(tensor_type type) { return type == tensor_type::f32 ? 4 : 2; }

std::string listed(std::vector<std::uint64_t> const& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return out + "]";
}

// One message form for every fault of a tensor's description.
struct tensor_fault {
  std::string const& file;
  std::string const& name;
  [[noreturn]] void operator()(std::string const& what) const {
    throw model_error(file, "tensor " + in_quotes(name) + ": " + what);
  }
};

std::vector<std::uint64_t> whole_numbers(json const& list, char const* field, tensor_fault const& fault) {
  std::vector<std::uint64_t> out;
  for (auto const& item : list) {
    if (!item.is_number_unsigned()) {
      fault(std::string(field) + " holds " + shown(item) + "; whole numbers from 0 to 2^64-1 are allowed");
    }
    out.push_back(item.get<std::uint64_t>());
  }
  return out;
}

json const& member(json const& entry, char const* field, json::value_t type, char const* wanted,
                   tensor_fault const& fault) {
  auto const found = entry.find(field);
  if (found == entry.end()) {
    fault(std::string("it has no ") + field + "; dtype, shape and data_offsets are needed");
  }
  if (found->type() != type) {
    fault(std::string(field) + " is " + shown(*found) + "; " + wanted + " is needed");
  }
  return *found;
}

tensor_type parse_type(std::string const& name, tensor_fault const& fault) {
  if (name == "F32") {
    return tensor_type::f32;
  }
  if (name == "F16") {
    return tensor_type::f16;
  }
  if (name == "BF16") {
    return tensor_type::bf16;
  }
  fault("dtype is " + in_quotes(name) + "; F32, F16 and BF16 are allowed");
}

tensor_entry parse_entry(json const& entry, std::uint64_t data_bytes, tensor_fault const& fault) {
  if (!entry.is_object()) {
    fault("its description is " + shown(entry) + "; an object is needed");
  }
  tensor_entry out{};
  out.type = parse_type(
      member(entry, "dtype", json::value_t::string, "a string", fault).get_ref<std::string const&>(), fault);

  auto const& shape = member(entry, "shape", json::value_t::array, "an array", fault);
  if (shape.size() > safetensors_file::max_rank) {
    fault("shape has " + std::to_string(shape.size()) + " dimensions; at most " +
          std::to_string(safetensors_file::max_rank) + " are allowed");
  }
  out.shape = whole_numbers(shape, "shape", fault);

  auto const& offsets = member(entry, "data_offsets", json::value_t::array, "an array", fault);
  if (offsets.size() != 2) {
    fault("data_offsets has " + std::to_string(offsets.size()) + " items; two (begin, end) are needed");
  }
  auto const range = whole_numbers(offsets, "data_offsets", fault);
  out.begin = range[0];
  out.end = range[1];
  if (out.begin > out.end) {
    fault("data_offsets begin at " + std::to_string(out.begin) + " and end at " + std::to_string(out.end) +
          "; the end must not come before the begin");
  }
  if (out.end > data_bytes) {
    fault("data_offsets end at " + std::to_string(out.end) + "; the file holds " +
          std::to_string(data_bytes) + " bytes of data (is it cut short?)");
  }
  std::uint64_t bytes = width(out.type);
  for (auto const extent : out.shape) {
    if (extent != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / extent) {
      fault("shape " + listed(out.shape) + " counts more than 2^64 bytes; the file holds " +
            std::to_string(data_bytes));
    }
    bytes *= extent;
  }
  if (bytes != out.end - out.begin) {
    fault("shape " + listed(out.shape) + " needs " + std::to_string(bytes) + " bytes and data_offsets give " +
          std::to_string(out.end - out.begin) + "; they must agree");
  }
  return out;
}

// The format allows neither overlaps nor holes: a file with either was not written by an honest writer.
void check_tiling(std::string const& file, std::map<std::string, tensor_entry> const& entries,
                  std::uint64_t data_bytes) {
  std::vector<std::pair<tensor_entry const*, std::string const*>> order;
  for (auto const& [name, entry] : entries) {
    order.emplace_back(&entry, &name);
  }
  std::sort(order.begin(), order.end(), [](auto const& a, auto const& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::uint64_t at = 0;
  for (auto const& [entry, name] : order) {
    if (entry->begin != at) {
      throw model_error(file, "tensor " + in_quotes(*name) + ": data_offsets begin at " +
                                  std::to_string(entry->begin) +
                                  "; the data of the tensor before it end at " + std::to_string(at) +
                                  " (overlaps and holes are not allowed)");
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    throw model_error(file,
                      std::to_string(data_bytes - at) + " bytes follow the last tensor; none are allowed");
  }
}

template <class Word, class Convert>
void widen(std::vector<char> const& bytes, std::vector<float>& out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Word word;
    std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
    out[i] = convert(word);
  }
}

// By exponent bits: isfinite() may be folded to true under -ffast-math.
bool finite(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7f800000u) != 0x7f800000u;
}

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

float half_to_float(std::uint16_t bits) {
  std::uint32_t const sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1fu;
  std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    return from_bits(sign | 0x7f800000u | (fraction << 13));
  }
  if (exponent == 0) {
    if (fraction == 0) {
      return from_bits(sign);
    }
    // A subnormal half is a normal float: shift its leading bit into the hidden place.
    exponent = 1;
    while ((fraction & 0x400u) == 0) {
      fraction <<= 1;
      --exponent;  // wraps below zero and is brought back by the bias
    }
    fraction &= 0x3ffu;
  }
  return from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

float bfloat16_to_float(std::uint16_t bits) { return from_bits(static_cast<std::uint32_t>(bits) << 16); }

safetensors_file::safetensors_file(std::string path) : path_(std::move(path)) {
  auto const size = file_size(path_);
  if (size < 8) {
    throw model_error(path_, "is " + std::to_string(size) + " bytes long; a safetensors file has at least 8");
  }
  std::ifstream in(path_, std::ios::binary);
  unsigned char raw[8];
  if (!in || !in.read(reinterpret_cast<char*>(raw), 8)) {
    throw model_error(path_, "cannot be read");
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = (length << 8) | raw[i];
  }
  if (length > max_header_bytes) {
    throw model_error(path_, "its header length is " + std::to_string(length) + "; at most " +
                                 std::to_string(max_header_bytes) +
                                 " is allowed (is it a safetensors file?)");
  }
  if (length > size - 8) {
    throw model_error(path_, "its header length is " + std::to_string(length) + " and " +
                                 std::to_string(size - 8) + " bytes follow (is it cut short?)");
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(length))) {
    throw model_error(path_, "its header cannot be read");
  }
  if (header.empty() || header.front() != '{') {
    throw model_error(path_, "its header does not begin with '{'; a safetensors header is a JSON object");
  }
  data_begin_ = 8 + length;
  auto const data_bytes = size - data_begin_;
  auto const parsed = parse_json(path_, "header", header);
  for (auto const& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) {
        throw model_error(path_, "__metadata__ is " + shown(value) + "; an object is needed");
      }
      for (auto const& [key, text] : value.items()) {
        if (!text.is_string())
          throw model_error(path_, "__metadata__ holds " + shown(text) + "; texts are needed");
        metadata_.emplace(key, text.get<std::string>());
      }
      continue;
    }
    entries_.emplace(name, parse_entry(value, data_bytes, tensor_fault{path_, name}));
  }
  check_tiling(path_, entries_, data_bytes);
}

std::vector<float> safetensors_file::read(std::string const& name,
                                          std::vector<std::uint64_t> const& shape) const {
  tensor_fault const fault{path_, name};
  auto const found = entries_.find(name);
  if (found == entries_.end()) {
    fault("it is missing; config.json asks for it with shape " + listed(shape));
  }
  auto const& entry = found->second;
  if (entry.shape != shape) {
    fault("shape is " + listed(entry.shape) + "; config.json asks for " + listed(shape));
  }
  auto const size = static_cast<std::size_t>(entry.end - entry.begin);  // at most the file's own size
  std::vector<char> bytes(size);
  std::ifstream in(path_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(data_begin_ + entry.begin));
  if (!in || !in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    fault("its data cannot be read");
  }
  std::vector<float> values(size / width(entry.type));
  if (entry.type == tensor_type::f32) {
    widen<std::uint32_t>(bytes, values, from_bits);
  } else {
    widen<std::uint16_t>(bytes, values, entry.type == tensor_type::f16 ? half_to_float : bfloat16_to_float);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!finite(values[i])) {
      fault("element " + std::to_string(i) + " is NaN or infinite; finite weights are needed");
    }
  }
  return values;
}

}  // namespace tiny_llama
