// Whole files in and out: sizes are known before memory is taken, and a reader never sees a half-written
// file.
#pragma once

#include "error.hpp"

#include <cstdint>
#include <cstdio>
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

/// Where write_file writes before it renames.
inline std::string part_of(std::string const& path) { return path + ".part"; }

/// Whether write_file could write to `path` now. What is at `path` stays as it is.
inline bool can_write_file(std::string const& path) {
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem)) return false;
  bool const opens = std::ofstream(part_of(path), std::ios::binary | std::ios::trunc).is_open();
  if (opens) std::remove(part_of(path).c_str());
  return opens;
}

/// Writes beside the target, then renames, so that whoever reads `path` finds the old file or the whole new
/// one.
inline void write_file(std::string const& path, std::string const& bytes) {
  std::string const part = part_of(path);
  {
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.flush();
    if (!out) {
      std::remove(part.c_str());
      throw std::runtime_error(path + ": cannot be written; a writable place is needed");
    }
  }
  std::error_code problem;
  std::filesystem::rename(part, path, problem);
  if (problem) {
    std::remove(part.c_str());
    throw std::runtime_error(path + ": cannot be put in place (" + problem.message() + ")");
  }
}

}  // namespace tiny_llama
