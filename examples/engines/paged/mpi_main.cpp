// The same engine on several ranks, each with some of the KV heads: its part of every page, of the ledger,
// and of attention. Run it as any MPI program: mpirun -n 2 kvmeld_paged_mpi
#include "host_engine.hpp"
#include "options.hpp"
#include "serve.hpp"

#include <tiny_llama/files.hpp>
#include <tiny_llama/program.hpp>

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace paged_engine;

/// Every rank reads the same requests in the same order, so all that has to be exchanged is what the heads of
/// the others say: their outputs, and how long they are.
class mpi_ranks {
public:
  void gather(float* out, std::size_t rows, std::size_t width) {
    int ranks = 1, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::size_t const own = width / static_cast<std::size_t>(ranks);
    mine_.resize(rows * own);
    all_.resize(rows * width);
    for (std::size_t row = 0; row < rows; ++row) {
      float const* const from = out + row * width + static_cast<std::size_t>(rank) * own;
      std::copy_n(from, own, mine_.data() + row * own);
    }
    MPI_Allgather(mine_.data(), static_cast<int>(mine_.size()), MPI_FLOAT, all_.data(),
                  static_cast<int>(mine_.size()), MPI_FLOAT, MPI_COMM_WORLD);
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
      for (std::size_t row = 0; row < rows; ++row)
        std::copy_n(all_.data() + (r * rows + row) * own, own, out + row * width + r * own);
    }
  }
  /// Pages are as many as the longest head of any rank takes.
  std::uint32_t most(std::uint32_t x) const {
    std::uint32_t result = x;
    MPI_Allreduce(&x, &result, 1, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
    return result;
  }

private:
  std::vector<float> mine_, all_;
};

/// Runs the workload split over the ranks; then on one rank alone, which has to answer the same.
int run(program_options const& o) {
  int ranks = 1, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  int const heads = model.shape().kv_heads;
  if (heads % ranks != 0) {
    throw std::invalid_argument("mpi: number of ranks is " + std::to_string(ranks) + "; it must divide " +
                                std::to_string(heads) + ", the KV heads");
  }
  std::string const text = tiny_llama::read_file(o.model + "/heldout.txt", 1u << 30);
  auto const work = make_workload(text, o.requests, o.context, o.seed);

  engine_options split = o.engine;
  split.sizes.heads = static_cast<std::uint32_t>(heads / ranks);
  split.sizes.first_head = static_cast<std::uint32_t>(rank) * split.sizes.heads;
  engine<any_host_kv, mpi_ranks> e(model, split, o.how());
  served const together = serve(e, work, nullptr);
  int wrong = 0;
  if (rank == 0) {
    std::cout << ranks << " ranks with " << split.sizes.heads << " of " << heads << " KV heads each\n";
    print_summary(std::cout, e, together);
    host_engine whole(model, o.engine, o.how());
    served const alone = serve(whole, work, nullptr);
    for (auto const& [id, tokens] : alone.tokens) wrong += tokens == together.tokens.at(id) ? 0 : 1;
    if (wrong == 0) {
      std::cout << "one rank with all heads answers the same to all " << alone.tokens.size() << " requests\n";
    } else {
      std::cerr << "kvmeld_paged_mpi: " << wrong << " of " << alone.tokens.size()
                << " answers differ from those of one rank\n";
    }
  }
  MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int const status = tiny_llama::run_program("kvmeld_paged_mpi", [&] {
    program_options o;
    tiny_llama::command_line line("The paged engine split over ranks by KV heads");
    declare(line, o);
    if (tiny_llama::shows_help(line.parse(argc, argv))) return 0;
    try {
      return run(o);
    } catch (std::exception const& problem) {
      std::cerr << "kvmeld_paged_mpi: " << problem.what() << "\n";
      MPI_Abort(MPI_COMM_WORLD, 1);  // the others wait for what this rank does not send
      return 1;
    }
  });
  MPI_Finalize();
  return status;
}
