// Calls that are recorded once and made again with other lists.
#include <kvmeld/exec/call_record.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace call_record_cases {

namespace {

constexpr char append_kind = 0, commit_kind = 0;

struct recorded {
  std::vector<std::uint32_t> places = std::vector<std::uint32_t>(8);
  kvmeld::call_record record{places.data(), places.size()};

  recorded() {
    record.begin_recording();
    std::uint32_t const slots[] = {4, 5, 6};
    record.stage({slots, 3});
    CHECK(record.limit("rounds", 2, 3) == 3);
    CHECK(record.launch(&append_kind, 12));
    CHECK(record.end() == "");
  }
  // The same calls with other numbers.
  std::string replay(std::vector<std::uint32_t> const& slots, int limits, std::uint32_t rounds,
                     void const* kind, std::uint64_t tiles, int launches = 1) {
    record.begin_replay();
    record.stage({slots.data(), slots.size()});
    for (int i = 0; i < limits; ++i) record.limit("rounds", rounds, 9);
    for (int i = 0; i < launches; ++i) CHECK_FALSE(record.launch(kind, tiles));
    return record.end();
  }
};

std::string sequence_of_calls(char const* how) {
  return std::string("replay: sequence of calls is ") + how + "; it must be the one that was recorded";
}

}  // namespace

TEST_CASE("the same calls are made again with other lists") {
  recorded x;
  CHECK(x.replay({7}, 1, 3, &append_kind, 12) == "");
  CHECK(x.record.numbers().size() == 3);
  CHECK(x.record.numbers()[0] == 7);
  CHECK(x.record.numbers()[1] == kvmeld::idle_sequence);
  CHECK(x.record.numbers()[2] == kvmeld::idle_sequence);
  CHECK(x.replay({1, 2, 3}, 1, 0, &append_kind, 12) == "");
}

TEST_CASE("other calls than the recorded ones are refused") {
  recorded x;
  CHECK(x.replay({1}, 0, 0, &append_kind, 12) == sequence_of_calls("shorter"));
  CHECK(x.replay({1}, 1, 3, &append_kind, 12, 0) == sequence_of_calls("shorter"));
  CHECK(x.replay({1}, 2, 3, &append_kind, 12) == sequence_of_calls("another"));
  CHECK(x.replay({1}, 1, 3, &append_kind, 12, 2) == sequence_of_calls("another"));
  CHECK(x.replay({1}, 1, 3, &commit_kind, 12) == sequence_of_calls("another"));
  CHECK(x.replay({1}, 1, 3, &append_kind, 13) == sequence_of_calls("another"));
  x.record.begin_replay();
  CHECK(x.record.end() == sequence_of_calls("shorter"));
  CHECK(x.replay({1}, 1, 3, &append_kind, 12) == "");  // a problem is of its replay alone
}

TEST_CASE("longer lists and larger numbers than recorded are refused") {
  recorded x;
  CHECK(x.replay({1, 2, 3, 4}, 1, 3, &append_kind, 12) ==
        "replay: length of a list is 4; it must be at most 3, as was recorded (record with the longest)");
  CHECK(x.replay({1}, 1, 4, &append_kind, 12) ==
        "replay: number of rounds is 4; it must be at most 3, as was recorded (record with the most)");
  x.record.begin_recording();
  std::vector<std::uint32_t> const many(9);
  x.record.stage({many.data(), many.size()});
  CHECK(x.record.end() ==
        "record: number of numbers in lists is 9; it must be at most 8, the room of the record");
}

}  // namespace call_record_cases
