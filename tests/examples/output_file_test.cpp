// Output files: what is replaced, what is refused and stays, and what a failed write leaves behind.
#include "output_file.hpp"

#include "files.hpp"
#include "model_files.hpp"

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <set>
#include <stdexcept>

namespace {

std::set<std::string> names_in(test::temporary_folder const& folder) {
  std::set<std::string> out;
  for (auto const& entry : std::filesystem::directory_iterator(folder.path()))
    out.insert(entry.path().filename().string());
  return out;
}

std::string content(std::string const& path) { return tiny_llama::read_file(path, 1000); }

mode_t mode_of(std::string const& path) {
  struct stat s {};
  REQUIRE(lstat(path.c_str(), &s) == 0);
  return s.st_mode;
}

std::string refusal_of(std::string const& path) {
  return test::refusal<std::runtime_error>([&] { tiny_llama::write_file(path, "new"); });
}

/// Both the question before the work and the writing say `problem`; what is there stays what it is.
void stays(std::string const& path, std::string const& problem) {
  INFO(path);
  mode_t const before = mode_of(path);
  CHECK(tiny_llama::output_problem(path) == problem);
  CHECK(refusal_of(path) == path + ": cannot be written (" + problem + ")");
  CHECK(mode_of(path) == before);
}

}  // namespace

TEST_CASE("output files: a new one follows the umask, a replaced one keeps its mode") {
  test::temporary_folder folder;
  mode_t const umask_before = umask(027);
  tiny_llama::write_file(folder / "new", "1");
  umask(umask_before);
  CHECK(mode_of(folder / "new") == (S_IFREG | 0640));
  for (mode_t const mode : {0604u, 0600u, 0755u}) {
    REQUIRE(chmod((folder / "new").c_str(), mode) == 0);
    tiny_llama::write_file(folder / "new", "another");
    CHECK(mode_of(folder / "new") == (S_IFREG | mode));
  }
  CHECK(content(folder / "new") == "another");
  tiny_llama::write_file(folder / "new", "");
  CHECK(content(folder / "new").empty());
  CHECK(names_in(folder) == std::set<std::string>{"new"});
}

TEST_CASE("output files: files and links beside the target stay") {
  test::temporary_folder folder;
  folder.write("theirs", "theirs");
  folder.write("report.part", "a part");
  std::filesystem::create_symlink(folder / "theirs", folder / "other.part");
  for (char const* name : {"report", "other"}) {
    CHECK(tiny_llama::output_problem(folder / name).empty());
    tiny_llama::write_file(folder / name, "new");
  }
  CHECK(content(folder / "report.part") == "a part");
  CHECK(content(folder / "theirs") == "theirs");
  CHECK(S_ISLNK(mode_of(folder / "other.part")));
  // Another name of the old file keeps the old bytes.
  std::filesystem::create_hard_link(folder / "theirs", folder / "same");
  tiny_llama::write_file(folder / "same", "new");
  CHECK(content(folder / "theirs") == "theirs");
}

TEST_CASE("output files: only files are replaced") {
  test::temporary_folder folder;
  folder.write("theirs", "theirs");
  std::filesystem::create_symlink(folder / "theirs", folder / "link");
  std::filesystem::create_symlink(folder / "nothing", folder / "dangling");
  std::filesystem::create_directory(folder / "folder");
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::string const socket_path = folder / "socket";
  REQUIRE(socket_path.size() < sizeof name.sun_path);
  socket_path.copy(name.sun_path, socket_path.size());
  int const socket_here = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(socket_here, reinterpret_cast<sockaddr const*>(&name), sizeof name) == 0);
  std::string device = "/dev/full";
  if (mknod((folder / "full").c_str(), S_IFCHR | 0600, makedev(1, 7)) == 0) device = folder / "full";
  auto const names = names_in(folder);
  stays(folder / "link", "it is a symbolic link");
  stays(folder / "dangling", "it is a symbolic link");
  stays(folder / "folder", "it is a folder");
  stays(folder / "fifo", "it is a pipe");
  stays(socket_path, "it is a device or a socket");
  stays(device, "it is a device or a socket");
  close(socket_here);
  CHECK(content(folder / "theirs") == "theirs");
  CHECK(refusal_of("-") == "-: cannot be written ('-' is no file here: stdout gets what is printed)");
  CHECK(test::has(refusal_of(folder / "folder/"), "it names no file"));
  CHECK(test::has(refusal_of("/dev/stdout"), "it is a symbolic link"));
  CHECK(test::has(refusal_of(folder / "none/file"), "No such file or directory"));
  CHECK(test::has(refusal_of(folder / "theirs/file"), "Not a directory"));
  CHECK(test::has(refusal_of(folder / std::string(300, 'n')), "File name too long"));
  CHECK(names_in(folder) == names);
}

TEST_CASE("output files: a failed write leaves the old file, and no other") {
  test::temporary_folder folder;
  folder.write("old", "old");
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit const small{1000, before.rlim_max};
  for (char const* name : {"old", "new"}) {
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::string const told = test::refusal<std::runtime_error>(
        [&] { tiny_llama::write_file(folder / name, std::string(100000, 'x')); });
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(told == (folder / name) + ": cannot be written (File too large)");
  }
  std::signal(SIGXFSZ, handler);
  CHECK(names_in(folder) == std::set<std::string>{"old"});
  CHECK(content(folder / "old") == "old");
}
