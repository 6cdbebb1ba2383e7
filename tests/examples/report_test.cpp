// The demo's report in its three forms, and the progress bar.
#include "report.hpp"

#include "files.hpp"
#include "model_files.hpp"
#include "progress.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

using tiny_llama::report;
using tiny_llama::report_row;

namespace {

report sample() {
  report out{"tiny <&> \"model\"", 1024, 4, 4, 18446744073709551615u, {}};
  out.rows.push_back({"full", "full", 1.0, 1.7, 0.99, 0.95, 0.98, 0.9, 0.0, 2097152, 2097152, -1, 500});
  out.rows.push_back(
      {"streaming_llm", "evict", 0.5, 1.75, 0.5, 0.4, 0.6, 0.5, 0.1, 2097152, 1048576, 0.5, 700});
  out.rows.push_back(
      {"chelsea", "merge", 0.5, 1.71, 0.75, 0.6, -1, -1, 0.125, 2097152, 1048576, 2.5, 650.25});
  out.rows.back().merged = 0.4375;
  out.rows.back().dropped = 0.0625;
  out.rows.back().mass_retained = 0.875;
  out.rows.back().degrees = {0.5, 0.25, 0.125, 0, 0, 0.0625, 0, 0, 0, 0, 0.0625, 0};
  out.rows.push_back({"chelsea", "merge", 0.2, 1.72, 0.625, 0.5, 0.7, 0.5, 0.2, 2097152, 419430, 2.25, 800});
  return out;
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    out.push_back(line);
  }
  return out;
}

}  // namespace

TEST_CASE("JSON holds every figure and is put in place whole") {
  test::temporary_folder const folder;
  auto const wanted = sample();
  auto const path = folder.write("r.json", "old");
  tiny_llama::write_json(wanted, path);
  CHECK(!std::filesystem::exists(path + ".part"));
  auto const got = nlohmann::json::parse(tiny_llama::read_file(path, 1 << 20));
  CHECK(got["model"] == wanted.model);
  CHECK(got["unit"] == "byte");
  CHECK(got["context"] == 1024);
  CHECK(got["contexts"] == 4);
  CHECK(got["needles"] == 4);
  CHECK(got["seed"] == wanted.seed);
  REQUIRE(got["rows"].size() == wanted.rows.size());
  for (std::size_t i = 0; i < wanted.rows.size(); ++i) {
    auto const& row = got["rows"][i];
    auto const& r = wanted.rows[i];
    CHECK(row.size() == 18);
    CHECK(row["method"] == r.method);
    CHECK(row["kind"] == r.kind);
    CHECK(row["kv_bytes_full"] == r.kv_bytes_full);
    CHECK(row["kv_bytes"] == r.kv_bytes);
    std::pair<char const*, double> const figures[] = {{"budget", r.budget},
                                                      {"bits_per_byte", r.bits},
                                                      {"needle_accuracy", r.needle_accuracy},
                                                      {"needle_exact", r.needle_exact},
                                                      {"needle_accuracy_inside", r.needle_accuracy_inside},
                                                      {"needle_exact_inside", r.needle_exact_inside},
                                                      {"output_error", r.output_error},
                                                      {"compress_ms", r.compress_ms},
                                                      {"decode_tokens_per_s", r.decode_tokens_per_s},
                                                      {"mass_retained", r.mass_retained},
                                                      {"merged", r.merged},
                                                      {"dropped", r.dropped}};
    for (auto const& [name, value] : figures) {
      CHECK((value < 0 ? row[name].is_null() : row[name].get<double>() == value));
    }
    CHECK(row["degrees"].get<std::vector<double>>() == r.degrees);
  }
  CHECK(test::has(
      test::refusal<std::runtime_error>([&] { tiny_llama::write_json(wanted, folder / "none/r.json"); }),
      "cannot be written"));
  auto odd = wanted;
  odd.model = "\xff";
  CHECK(nlohmann::json::accept(tiny_llama::to_json(odd)));
}

TEST_CASE("the table is aligned, grouped and marks the best") {
  std::ostringstream out;
  tiny_llama::print_table(sample(), out);
  auto const lines = lines_of(out.str());
  std::vector<std::string> rows;
  for (auto const& line : lines) {
    CHECK(line.size() <= 110);
    if (test::has(line, "evict ") || test::has(line, "merge ") || line.rfind("full", 0) == 0) {
      rows.push_back(line);
    }
  }
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].rfind("full", 0) == 0);
  CHECK(std::all_of(rows.begin(), rows.end(),
                    [&](std::string const& r) { return r.size() == rows[0].size(); }));
  CHECK(test::has(rows[1], "0.100*"));  // the least error of 50 %
  CHECK(test::has(rows[2], "1.710*"));
  CHECK(test::has(rows[2], "75.0%*"));
  CHECK(!test::has(rows[1], "50.0%*"));  // of one measured value none is best
  CHECK(!test::has(rows[0] + rows[3], "*"));
  CHECK(test::has(rows[2], " - "));
  std::ostringstream empty;
  tiny_llama::print_table(report{}, empty);
  CHECK(!empty.str().empty());
}

TEST_CASE("tasks have columns of their own") {
  report with = sample();
  with.tasks = {"had", "a task with a name that is far too long for a table"};
  for (report_row& row : with.rows) {
    row.task_exact = {0.5, 0.25};
    row.task_accuracy = {0.75, 0.625};
  }
  with.rows.back().task_exact = {1.0, -1};
  std::ostringstream out;
  tiny_llama::print_table(with, out);
  auto const lines = lines_of(out.str());
  CHECK(test::has(lines[0], "4 contexts of 1024 tokens on average, 2 tasks"));
  CHECK(test::has(lines[3], "had"));
  CHECK(!test::has(lines[3], "tokens/s"));
  CHECK(!test::has(out.str(), "digits"));
  CHECK(test::has(out.str(), "25.0%"));
  std::size_t const width = lines[5].size();
  CHECK(lines[4].size() == width);  // the line below the heading
  CHECK(lines[3].size() == width);
  auto const read = nlohmann::json::parse(tiny_llama::to_json(with));
  CHECK(read["rows"][0]["tasks"]["had"]["exact"] == 0.5);
  CHECK(read["rows"][0]["tasks"]["had"]["accuracy"] == 0.75);
  CHECK(read["rows"].back()["tasks"][with.tasks[1]]["exact"].is_null());
  auto const svg = tiny_llama::to_chart(with);
  CHECK(test::has(svg, "2 tasks, asked after compression"));
  CHECK(!test::has(svg, "lanted"));
}

TEST_CASE("what is counted in tokens says so") {
  for (bool const tasks : {false, true}) {
    report in_tokens = sample();
    in_tokens.unit = "token";
    if (tasks) {
      in_tokens.tasks = {"had"};
      for (report_row& row : in_tokens.rows) {
        row.task_exact = {0.5};
        row.task_accuracy = {0.75};
      }
    }
    std::ostringstream out;
    tiny_llama::print_table(in_tokens, out);
    auto const lines = lines_of(out.str());
    CHECK(test::has(lines[3], "  token "));
    CHECK(test::has(lines[3], "tokens    exact") == tasks);
    CHECK(test::has(out.str(), "all tokens right (exact), tokens right;") == tasks);
    CHECK(!test::has(out.str(), "byte"));
    CHECK(test::has(tiny_llama::to_chart(in_tokens), "bits per token"));
    CHECK(!test::has(tiny_llama::to_chart(in_tokens), "byte"));
    auto const read = nlohmann::json::parse(tiny_llama::to_json(in_tokens));
    CHECK(read["unit"] == "token");
    CHECK(read["rows"][0]["bits_per_token"] == 1.7);
    CHECK(!read["rows"][0].contains("bits_per_byte"));
  }
}

TEST_CASE("the chart is well-formed and escapes names") {
  auto const svg = tiny_llama::to_chart(sample());
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(test::has(svg, "tiny &lt;&amp;&gt; &quot;model&quot;"));
  CHECK(test::has(svg, "chelsea (merges)"));
  CHECK(test::has(svg, "streaming_llm (evicts)"));
  CHECK(!test::has(svg, "nan"));
  CHECK(!test::has(svg, "inf"));
  CHECK(!test::has(svg, "<script"));
  CHECK(std::count(svg.begin(), svg.end(), '<') == std::count(svg.begin(), svg.end(), '>'));
  report only_full = sample();
  only_full.rows.resize(1);
  CHECK(!test::has(tiny_llama::to_chart(only_full), "nan"));
  CHECK(!test::has(tiny_llama::to_chart(report{}), "nan"));
  test::temporary_folder const folder;
  tiny_llama::write_chart(sample(), folder / "c.svg");
  CHECK(tiny_llama::read_file(folder / "c.svg", 1 << 20) == svg);
}

TEST_CASE("progress: a line per tenth in a log, one line redrawn on a terminal") {
  std::ostringstream log, screen;
  {
    tiny_llama::progress to_log(log, 200, false), to_screen(screen, 200, true);
    for (int i = 0; i <= 200; ++i) {
      to_log.update(i, "chelsea");
      to_screen.update(i, "chelsea " + std::string(300, 'x'));
    }
    to_log.finish();
  }
  auto const lines = lines_of(log.str());
  CHECK(lines.size() == 11);
  CHECK(test::has(lines[5], " 50%"));
  CHECK(test::has(lines[5], "elapsed, about "));
  CHECK(test::has(lines[5], "chelsea"));
  auto const drawn = screen.str();
  CHECK(std::count(drawn.begin(), drawn.end(), '\r') == 201);
  CHECK(std::count(drawn.begin(), drawn.end(), '\n') == 1);
}
