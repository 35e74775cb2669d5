"""Tables of kernels as profilers print them, and a person's summary of steps: what they prove without steps or order."""

from pathlib import Path

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError
from diagnose.sources.files import read_files
from diagnose.sources.kernel_table import read_kernel_table
from probes.kernel_patterns import KernelClass
from tests.diagnose.cases import texts, verdict
from tests.traces import ALL_REDUCE, GEMM

NVPROF = f"""==7== NVPROF is profiling process 7, command: python serve.py
==7== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   60.00%  6.0000ms        10  600.00us  500.00us  700.00us  {ALL_REDUCE}
                   30.00%  3.0000ms        40  75.000us  70.000us  80.000us  {GEMM}
      API calls:   99.00%  9.0000s        50  1.0000ms  5.0000us  9.0000ms  cudaDeviceSynchronize
"""
NSYS = f"""
 ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)  Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ----------------
     98.0       9000000000         50   1000000   1000000      5000   9000000        1.0    cudaDeviceSynchronize

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)  Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ----------------
     60.0        6,000,000         10  600000.0  600000.0    500000    700000      10.0     {ALL_REDUCE}
     30.0        3,000,000         40   75000.0   75000.0     70000     80000       1.0     {GEMM}
"""
NSYS_CSV = f"""Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,6000000,10,600000.0,600000.0,500000,700000,10.0,"{ALL_REDUCE}"
30.0,3000000,40,75000.0,75000.0,70000,80000,1.0,"{GEMM}"
"""
ROCPROF = f'''"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"
"{ALL_REDUCE}",10,6000000,600000,60.0,500000,700000,10
"{GEMM}",40,3000000,75000,30.0,70000,80000,1
"hipLaunchKernel",50,9000000,75000,30.0,70000,80000,1
'''
TORCH = f"""---------------------------  ------------  ------------  ------------  ------------  ------------
                       Name    Self CPU %      Self CPU     Self CUDA   Self CUDA %    # of Calls
---------------------------  ------------  ------------  ------------  ------------  ------------
                  aten::mm        10.00%       1.000ms       3.000ms        30.00%            40
  {ALL_REDUCE[:40]}...         0.00%       0.000us       6.000ms        60.00%            10
  {GEMM}         0.00%       0.000us       3.000ms        30.00%            40
---------------------------  ------------  ------------  ------------  ------------  ------------
Self CUDA time total: 10.000ms
"""
FORMS = {"nvprof": NVPROF, "nsys stats": NSYS, "nsys's CSV": NSYS_CSV, "rocprof": ROCPROF, "torch's profiler": TORCH}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_device_time_by_class_in_each_profiler_s_columns(text):
    found = read_kernel_table("t", text)
    assert found is not None
    totals = found.totals
    assert totals.class_ns == {KernelClass.COMM: 6e6, KernelClass.GEMM: 3e6}
    assert totals.num_kernels == 50
    assert totals.total_ns == pytest.approx(10e6), "what the table leaves out is a tenth"


@pytest.mark.parametrize("text", [NVPROF, NSYS, NSYS_CSV, ROCPROF], ids=lambda text: text[:20])
def test_the_shortest_and_the_longest_collective(text):
    found = read_kernel_table("t", text)
    assert found is not None
    assert found.totals.comm_range_ns == (5e5, 7e5)


def look(path: Path, text: str) -> Diagnosis:
    path.write_text(text)
    observation = read_files([str(path)], None).observation()
    return judge(observation, None, (), is_live=False, target=observation.target)


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_collectives_that_hold_the_device_are_named_and_the_rank_stays_open(tmp_path, text):
    diagnosis = look(tmp_path / "t.txt", text)
    assert (diagnosis.primary, int(diagnosis.exit_code)) == ("collective_stall", 1)
    assert "wait for a late rank" in texts(diagnosis, "collective_stall")


@pytest.mark.parametrize(
    ("comm", "other", "expected"),
    [(30, 70, "undetermined"), (5, 95, "refuted"), (0, 100, "not_applicable"), (0, 50, "undetermined")],
    ids=["a fair share", "a small share", "none", "none among those that are listed"],
)
def test_a_smaller_share_of_collectives(tmp_path, comm, other, expected):
    rows = [(comm, ALL_REDUCE), (other, GEMM)]
    lines = [f'{share:.1f},{share * 1000},10,1,1,1,1,1,"{name}"' for share, name in rows if share]
    diagnosis = look(tmp_path / "t.csv", "\n".join([NSYS_CSV.split("\n")[0], *lines]))
    assert verdict(diagnosis, "collective_stall") == expected
    assert verdict(diagnosis, "bandwidth_saturation") == "undetermined", "what is read is most of it"


def test_a_name_that_a_terminal_has_cut_is_put_together():
    cut = NVPROF.replace(GEMM, GEMM[:12] + "\n" + GEMM[12:])
    found = read_kernel_table("t", cut)
    assert found is not None
    assert found.totals.class_ns[KernelClass.GEMM] == 3e6


def test_a_table_of_host_functions_says_what_it_lacks(tmp_path):
    text = "\n".join(line for line in TORCH.split("\n") if "0.00%       0.000us" not in line)
    with pytest.raises(SourceError, match="without a device kernel in it"):
        look(tmp_path / "t.txt", text)


HOST_ALONE = """-----------------  ------------  ------------  ------------  ------------  ------------  ------------
             Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    # of Calls
-----------------  ------------  ------------  ------------  ------------  ------------  ------------
     aten::linear         2.10%      12.000us        91.30%     521.000us      26.050us            20
"""


def test_a_table_without_columns_of_a_device_says_so_too(tmp_path):
    with pytest.raises(SourceError, match="without a device kernel in it: profile the device, too"):
        look(tmp_path / "t.txt", HOST_ALONE)


# ---- a person's summary


RUNS = {
    "as posted": "15:20:48  DECODE  x19     6 s\n15:20:56  prefill x58    77 s\n15:22:13  DECODE  x16     5 s\n",
    "in other words": "- decode: 19 steps, 6000 ms\n- extend: 58 steps, 77 s\n- decode: 16 steps, 5 s\n",
}


@pytest.mark.parametrize("text", RUNS.values(), ids=RUNS)
def test_a_summary_gives_step_durations_by_kind(tmp_path, text):
    diagnosis = look(tmp_path / "t.txt", text)
    histograms = diagnosis.case.signals.histograms
    assert {name: (h.count, round(h.sum, 6)) for name, h in histograms.items()} == {
        "step_prefill": (58.0, 77.0),
        "step_decode": (35.0, 11.0),
    }
    assert "58 prefill steps in a row took 77.0 s" in texts(diagnosis, "prefill_interference")
    assert verdict(diagnosis, "prefill_interference") == "undetermined", "nobody says that a stream was running"
    assert int(diagnosis.exit_code) == 3


def test_prompts_before_the_first_decode_kept_nobody_waiting(tmp_path):
    diagnosis = look(tmp_path / "t.txt", "prefill x58 77 s\nDECODE x19 6 s\n")
    assert "in a row" not in texts(diagnosis, "prefill_interference")


@pytest.mark.parametrize("text", ["prefill is slow, it took 77 s\nand decode x19 too\n", "decode x19 6 s\n"])
def test_prose_is_no_summary(tmp_path, text):
    with pytest.raises(SourceError, match="text of no kind"):
        look(tmp_path / "t.txt", text)
