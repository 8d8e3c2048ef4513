"""The processes of one group. They run functions of ``distributed_cases`` by name."""

import datetime
import multiprocessing
import os
import tempfile
import traceback

# Seconds to wait for a case, and for a rank to wait for its peers. A hang is an error.
LIMIT, PEERS = 90, 20
# Commands to a rank besides cases: end like a program, or exit abruptly.
END, LEAVE = "end", "leave"
# All tests of a process share one server. The last module is for test_opinfo.
PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.checkpoint", "distributed_cases",
             "torch.testing._internal.common_methods_invocations"]


def work(rank, world, folder, pipe, environment):
    os.environ.update(environment)
    import distributed_cases
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # The device has a default backend, so none is named.
    dist.init_process_group(
        init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=PEERS)
    )
    while (task := pipe.recv()) != END:
        if task == LEAVE:
            return
        name, arguments = task
        try:
            torch.manual_seed(0)
            pipe.send((True, getattr(distributed_cases, name)(rank, world, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """A group of processes: ``with Ranks(2) as ranks: results = ranks.run("a_case", argument)``.
    The results are in the order of the ranks."""

    def __init__(self, world, **environment):
        # A child cannot use its parent's engine, so ranks are forked from a process without one.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PRELOADED)
        self.folder = tempfile.TemporaryDirectory()
        self.processes, self.pipes = [], []
        # After an error the ranks may be at different places.
        self.is_broken = False
        for rank in range(world):
            here, there = server.Pipe()
            arguments = (rank, world, self.folder.name, there, environment)
            self.processes.append(server.Process(target=work, args=arguments, daemon=True))
            self.processes[-1].start()
            there.close()
            self.pipes.append(here)

    def run(self, name, *arguments, gone=()):
        """Returns the results of all ranks in order, except of those that are gone by then."""
        for pipe in self.pipes:
            pipe.send((name, arguments))
        results, wrong = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                is_well, result = pipe.recv() if pipe.poll(LIMIT) else (False, f"no answer after {LIMIT} s")
            except (EOFError, ConnectionError):
                is_well, result = rank in gone, None if rank in gone else "it is gone"
            else:
                is_well = is_well and rank not in gone
            results.append(result)
            if not is_well:
                wrong.append(f"rank {rank} in {name}: {result}")
        self.is_broken = self.is_broken or bool(wrong or gone)
        if wrong:
            raise AssertionError("\n".join(wrong))
        return results

    def close(self, how=END):
        """Ends the ranks and returns their exit statuses."""
        for pipe in self.pipes:
            try:
                pipe.send(how)
            except OSError:
                pass
        for process in self.processes:
            process.join(PEERS)
        ended = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()
        return ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
