// Files that programs write. Whoever reads one finds the old file or the whole new one. A name that an option
// gives is not trusted: what is there may be a link, a device or a folder, and stays as it is.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>

namespace tiny_llama {
namespace detail {

/// What an output file would replace.
struct output_target {
  bool there = false;
  struct stat now {};   ///< of the file, if it is there
  std::string problem;  ///< not empty: why it cannot be replaced
};

inline char const* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISREG(mode) ? "a file" : "a device or a socket";
}

inline output_target look_at(std::string const& path) {
  output_target out;
  if (path == "-") {
    out.problem = "'-' is no file here: stdout gets what is printed";
  } else if (std::filesystem::path(path).filename().empty()) {
    out.problem = "it names no file";
  } else if (lstat(path.c_str(), &out.now) != 0) {
    if (errno != ENOENT) out.problem = std::strerror(errno);
  } else if (!S_ISREG(out.now.st_mode)) {
    out.problem = std::string("it is ") + kind_of(out.now.st_mode);
  } else if (access(path.c_str(), W_OK) != 0) {
    out.problem = std::strerror(errno);
  } else {
    out.there = true;
  }
  return out;
}

/// A file beside the target, under a name that nobody can foresee. It takes the target's place, or goes.
class new_file {
public:
  explicit new_file(std::string const& path) : path_(path), target_(look_at(path)) {
    if (!target_.problem.empty()) return;
    std::string folder = std::filesystem::path(path).parent_path().string();
    if (folder.empty()) folder = ".";
    std::random_device random;
    for (int attempt = 0; attempt < 16 && file_ < 0; ++attempt) {
      char name[40];
      std::snprintf(name, sizeof name, "/.kvmeld-%08x%08x.part", static_cast<unsigned>(random()),
                    static_cast<unsigned>(random()));
      temporary_ = folder + name;
      // The umask decides about a new file. One that replaces another is closed to others until it has that
      // one's mode.
      file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                   target_.there ? 0600 : 0666);
      if (file_ < 0 && errno != EEXIST) break;
    }
    if (file_ < 0) {
      target_.problem = std::strerror(errno);
    } else if (target_.there) {
      if (fchown(file_, target_.now.st_uid, target_.now.st_gid) != 0)
        errno = 0;  // only root gives files away
      if (fchmod(file_, target_.now.st_mode & 0777) != 0) target_.problem = std::strerror(errno);
    }
  }
  new_file(new_file const&) = delete;
  new_file& operator=(new_file const&) = delete;
  ~new_file() {
    if (file_ < 0) return;
    close(file_);
    if (!placed_) unlink(temporary_.c_str());
  }

  /// Empty, or why the target cannot be written.
  std::string const& problem() const { return target_.problem; }

  void write(std::string const& bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      ssize_t const n = ::write(file_, bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      done += static_cast<std::size_t>(n);
    }
    // Some file systems tell of a full disk only now, and some cannot be asked.
    if (fsync(file_) != 0 && errno != EINVAL && errno != ENOTSUP) fail();
  }

  void place() {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    placed_ = true;
  }

private:
  [[noreturn]] void fail() const {
    throw std::runtime_error(path_ + ": cannot be written (" + std::strerror(errno) + ")");
  }

  std::string path_, temporary_;
  output_target target_;
  int file_ = -1;
  bool placed_ = false;
};

}  // namespace detail

/// Why write_file would refuse `path` now; empty if it would not. Leaves what is there as it is.
inline std::string output_problem(std::string const& path) { return detail::new_file(path).problem(); }

/// Writes `bytes` to a regular file or a new one; a file keeps its mode. Throws std::runtime_error: for a
/// link, a device, a pipe or a folder, for "-", and if the bytes cannot be written. Then the old file is
/// there, and no other.
inline void write_file(std::string const& path, std::string const& bytes) {
  detail::new_file file(path);
  if (!file.problem().empty())
    throw std::runtime_error(path + ": cannot be written (" + file.problem() + ")");
  file.write(bytes);
  file.place();
}

}  // namespace tiny_llama
