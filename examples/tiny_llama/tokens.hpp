// Text and token files become token ids that the model knows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tiny_llama {

/// A model whose tokens are the 256 byte values: it can read any text without a tokenizer.
inline bool is_byte_model(int vocab_size) { return vocab_size == 256; }

/// One token per byte.
std::vector<int> byte_tokens(std::string_view text);

/// Token ids from a file: a JSON array (name ends in .json), or whole numbers separated by white space.
/// Throws model_error for anything else and for ids outside [0, vocab_size).
std::vector<int> read_token_ids(std::string const& path, int vocab_size);

/// The tokens of a file: its bytes for a byte model, else the ids written in it.
std::vector<int> read_tokens(std::string const& path, int vocab_size);

}  // namespace tiny_llama
