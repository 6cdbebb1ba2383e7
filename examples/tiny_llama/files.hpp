// Whole files that programs read: sizes are known before memory is taken. output_file.hpp writes.
#pragma once

#include "error.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace tiny_llama {

/// Size of a regular file in bytes; throws model_error for anything else (a folder would open, and fail only
/// on reading).
inline std::uint64_t file_size(std::string const& path) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem)) {
    throw model_error(path, "no such file");
  }
  if (!std::filesystem::is_regular_file(path, problem)) {
    throw model_error(path, "is not a regular file");
  }
  auto const size = std::filesystem::file_size(path, problem);
  if (problem) {
    throw model_error(path, "its size cannot be read (" + problem.message() + ")");
  }
  return size;
}

/// The bytes of a file of at most `most` bytes.
inline std::string read_file(std::string const& path, std::uint64_t most) {
  auto const size = file_size(path);
  if (size > most) {
    throw model_error(path, "is " + std::to_string(size) + " bytes long; at most " + std::to_string(most) +
                                " are allowed");
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!in || !in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw model_error(path, "cannot be read");
  }
  return bytes;
}

}  // namespace tiny_llama
