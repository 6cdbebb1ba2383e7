// Which mutants every test case reaches, a line per test case: name, seconds, numbers. Into the file
// KVMELD_MUTANT_REACH names.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct reach_listener : doctest::IReporter {
  explicit reach_listener(doctest::ContextOptions const&) {
    char const* const path = std::getenv("KVMELD_MUTANT_REACH");
    if (path != nullptr) file = std::fopen(path, "w");
  }
  void test_case_start(doctest::TestCaseData const& test) override {
    name = test.m_name;
    std::memset(kvmeld_mutants::reached, 0, sizeof kvmeld_mutants::reached);
  }
  void test_case_end(doctest::CurrentTestCaseStats const& stats) override {
    if (file == nullptr) return;
    std::fprintf(file, "%s\t%.6f\t", name, stats.seconds);
    for (std::size_t i = 0; i < sizeof kvmeld_mutants::reached; ++i) {
      if (kvmeld_mutants::reached[i] != 0) std::fprintf(file, "%zu ", i);
    }
    std::fprintf(file, "\n");
    std::fflush(file);
  }
  void report_query(doctest::QueryData const&) override {}
  void test_run_start() override {}
  void test_run_end(doctest::TestRunStats const&) override {}
  void test_case_reenter(doctest::TestCaseData const&) override {}
  void test_case_exception(doctest::TestCaseException const&) override {}
  void subcase_start(doctest::SubcaseSignature const&) override {}
  void subcase_end() override {}
  void log_assert(doctest::AssertData const&) override {}
  void log_message(doctest::MessageData const&) override {}
  void test_case_skipped(doctest::TestCaseData const&) override {}

private:
  std::FILE* file = nullptr;
  char const* name = "";
};
DOCTEST_REGISTER_LISTENER("reach", 1, reach_listener);

}  // namespace
