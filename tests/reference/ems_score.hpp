// What EMS keeps per token and how attention becomes its Global-Local score (paper 002, sections 3.2
// and 3.3). A token is a slot or a member. A slot has a key and a value row; once it was merged into, its key
// is a direction (the mean of unit keys, not of length 1), which stands for the slot's own token and for its
// members: key of a token = direction times the token's own norm (section 4.2).
#pragma once

#include "scores.hpp"

namespace reference {

// Attention that one token received: from all queries, from the last full window, from the current one.
struct ems_score {
  double global = 0, past = 0, current = 0;
  [[nodiscard]] double local() const { return past + current; }  // section 3.3: s_Loc = past + current
};

struct ems_slot {
  row key, value;
  long position = 0;
  ems_score score;    // of the slot's own token, in the collapsed form of all that it stands for
  double degree = 1;  // tokens it stands for: itself and its members
  double own_norm =
      0;  // 0: the key carries its norm; otherwise the key is a direction, this its token's norm
  double merge_weight = 0;  // sum of the weights merged so far, 0: never merged
  bool bad = false;         // NaN or infinity in a row: pinned, never merges, is never a target
};

struct ems_member {
  double norm = 0;
  long position = 0;
  std::size_t owner = 0;  // slot
  ems_score score;
};

struct ems_state {
  std::vector<ems_slot> slots;
  std::vector<ems_member> members;
  std::size_t rows_in_window = 0;  // rows that the current window has seen
};

inline ems_state ems_fresh(matrix const& keys, matrix const& values) {
  ems_state state;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ems_slot slot;
    slot.key = keys[i];
    slot.value = values[i];
    slot.position = static_cast<long>(i);
    state.slots.push_back(slot);
  }
  return state;
}

// One query row: attention per token, slots first, then members; with several query heads the mean of
// their rows. When the current window has seen `window` rows it becomes the past and a new one starts.
inline void ems_observe_row(ems_state& state, row const& attention, std::size_t window) {
  std::size_t const n = state.slots.size();
  for (std::size_t i = 0; i < n + state.members.size(); ++i) {
    ems_score& score = i < n ? state.slots[i].score : state.members[i - n].score;
    score.global += attention[i];
    score.current += attention[i];
    if (state.rows_in_window + 1 < window) continue;
    score.past = score.current;
    score.current = 0;
  }
  state.rows_in_window = state.rows_in_window + 1 < window ? state.rows_in_window + 1 : 0;
}

// The rows of a block. With `window` rows or more: past = exactly the last `window` rows, current = 0.
inline void ems_observe(ems_state& state, matrix const& rows, std::size_t window) {
  for (row const& attention : rows) ems_observe_row(state, attention, window);
  if (rows.size() < window) return;
  std::size_t const n = state.slots.size();
  for (std::size_t i = 0; i < n + state.members.size(); ++i) {
    ems_score& score = i < n ? state.slots[i].score : state.members[i - n].score;
    score.past = score.current = 0;
    for (std::size_t r = rows.size() - window; r < rows.size(); ++r) score.past += rows[r][i];
  }
  state.rows_in_window = 0;
}

// Eq. 2's factor, mean(s_Loc) / mean(s_Glo) over all slots; members do not count.
inline double ems_alignment(ems_state const& state) {
  double local = 0, global = 0;
  for (ems_slot const& slot : state.slots) {
    local += slot.score.local();
    global += slot.score.global;
  }
  return global > 0 ? local / global : 0.0;
}

inline double ems_global_local(ems_score const& score, double alignment) {
  return std::max(score.global * alignment, score.local());
}

}  // namespace reference
