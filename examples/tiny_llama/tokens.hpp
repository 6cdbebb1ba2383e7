// Text and token files become token ids that the model knows.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tiny_llama {

/// A model whose tokens are the 256 byte values: it can read any text without a tokenizer.
inline bool is_byte_model(int vocab_size) { return vocab_size == 256; }

/// One token per byte.
std::vector<int> byte_tokens(std::string_view text);

/// Token ids from a JSON array, which may be empty. A refusal (model_error) begins with `file` and `place`.
std::vector<int> ids_of_array(std::string const& file, std::string const& place, nlohmann::json const& array,
                              int vocab_size);

/// Token ids from a file: a JSON array (name ends in .json), or whole numbers separated by white space.
/// Throws model_error for anything else and for ids outside [0, vocab_size).
std::vector<int> read_token_ids(std::string const& path, int vocab_size);

/// The tokens of a file: its bytes for a byte model, else the ids written in it.
std::vector<int> read_tokens(std::string const& path, int vocab_size);

}  // namespace tiny_llama
