"""Processes of one group, which are given things to do by name: functions of
``distributed_cases``."""

import datetime
import multiprocessing
import os
import tempfile
import traceback

# How long is waited for what a group is to do, and by a rank for its peers: a hang is an error.
LIMIT, PEERS = 90, 20
# What a rank is told besides cases: to end as a program should, and to end without a word.
END, LEAVE = "end", "leave"
# There is one server for all tests of a process; the last of these is for test_opinfo.
PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.checkpoint", "distributed_cases",
             "torch.testing._internal.common_methods_invocations"]


def work(rank, world, folder, pipe, environment):
    os.environ.update(environment)
    import distributed_cases
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # No backend is named: the device has one.
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
    """``with Ranks(2) as ranks: results = ranks.run("a_case", argument)``. The results are in the
    order of the ranks."""

    def __init__(self, world, **environment):
        # An engine does not follow into a child, so these are forked from a process that has none.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PRELOADED)
        self.folder = tempfile.TemporaryDirectory()
        self.processes, self.pipes = [], []
        # Something went wrong: the ranks may be at different places.
        self.is_broken = False
        for rank in range(world):
            here, there = server.Pipe()
            arguments = (rank, world, self.folder.name, there, environment)
            self.processes.append(server.Process(target=work, args=arguments, daemon=True))
            self.processes[-1].start()
            there.close()
            self.pipes.append(here)

    def run(self, name, *arguments, gone=()):
        """Results of all ranks, in their order; none of those that are to be gone then."""
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
        """Ends the ranks; what they ended with."""
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
