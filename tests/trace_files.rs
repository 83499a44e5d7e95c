//! In: a fixed trace and damaged texts; out: what the file format, its checks and its exports make of them. Needs no
//! adapter.

use kiln::trace::{
    Device, Dispatch, Finding, Frame, Graphs, HostSpan, Kernel, Memory, Node, Options, Peaks, Tensor, TensorKind,
    Trace, TraceError, VERSION, times,
};
use proptest::prelude::*;
use serde_json::Value;

fn node(name: &str, inputs: &[usize]) -> Node {
    Node { name: name.into(), op: "relu".into(), ty: "f32 (2)".into(), inputs: inputs.to_vec(), becomes: None }
}

/// Two frames of three dispatches in two layers, one of them without times.
fn sample() -> Trace {
    let dispatch =
        |name: &str, kernel| Dispatch { name: name.into(), kernel, node: 1, grid: [4, 2, 1], flops: 1e6, bytes: 1e3 };
    let kernel = |name: &str| Kernel { name: name.into(), key: "Key".into(), wgsl: "@compute fn main() {}".into() };
    let span = |name: &str, begin, end| HostSpan { name: name.into(), thread: 0, begin, end };
    let frame = |begin, times: [Option<(u64, u64)>; 3]| Frame {
        begin,
        host: vec![span("encode", 100, 900), span("submit", 1_000, 1_500), span("wait", 1_500, 9_000)],
        gpu_at: 1_000,
        times: times.to_vec(),
        shared: Vec::new(),
        submits: 1,
        passes: 1,
        profiling_split_passes: false,
        encode_ns: 1_000,
        wall_ns: 10_000,
    };
    Trace {
        title: "two \"layers\", as\nwritten".into(),
        device: Device {
            adapter: "card".into(),
            kind: "CPU".into(),
            backend: "vulkan".into(),
            driver: "driver 1".into(),
            timestamps: true,
            peaks: Some(Peaks { flops: 2e9, bytes: 1e9 }),
        },
        options: Options { mode: "fused".into(), ..Options::default() },
        kernels: vec![kernel("matmul"), kernel("norm")],
        dispatches: vec![
            dispatch("blocks.0.a", 0),
            dispatch("blocks.0.b, \"quoted\"", 0),
            dispatch("head <script>\\", 1),
        ],
        compile: vec![span("lift", 0, 2_000), span("pipelines", 2_500, 40_000)],
        memory: Memory {
            resident: 1 << 20,
            naive: 1 << 22,
            slots: vec![64],
            tensors: vec![Tensor {
                name: "blocks.0.a".into(),
                kind: TensorKind::Temp,
                bytes: 60,
                slot: Some(0),
                alive: Some((0, 3)),
            }],
        },
        graph: Graphs {
            before: vec![Node { becomes: Some(1), ..node("x", &[]) }],
            after: vec![node("x", &[]), node("y", &[0])],
            findings: vec![Finding { pass: "chains".into(), what: "y: two in one".into() }],
        },
        frames: vec![
            frame(50_000, [Some((0, 2_000)), Some((3_500, 4_500)), Some((4_500, 6_000))]),
            frame(70_000, [Some((0, 2_500)), None, Some((2_000, 3_000))]),
        ],
        ..Trace::default()
    }
}

#[test]
fn p03_stamps_that_are_all_zero_are_unavailable() {
    assert_eq!(times(&[(0, 0), (0, 0)], 1.0), [None, None]);
    assert_eq!(times(&[], 1.0), []);
    let mut trace = sample();
    trace.frames.iter_mut().for_each(|f| f.times = vec![None; 3]);
    assert!(trace.to_string().contains("GPU unavailable, kernels unavailable, gaps unavailable"), "{trace}");
    assert!(!trace.to_string().contains(" 0.0 µs"), "{trace}");
    assert!(trace.to_csv().lines().skip(1).all(|l| l.ends_with(",,,")), "{}", trace.to_csv());
    let chrome: Value = serde_json::from_str(&trace.to_chrome()).unwrap();
    assert!(events(&chrome, "dispatch").is_empty() && events(&chrome, "layer").is_empty());
}

#[test]
fn p06_a_scope_without_an_end_or_out_of_order_has_no_time() {
    let ticks = [(50, 0), (0, 70), (90, 30), (100, 200), (60, 80)];
    assert_eq!(times(&ticks, 10.0), [None, None, None, Some((400, 1400)), Some((0, 200))]);
    assert_eq!(times(&[(1, u64::MAX)], 1e6), [Some((0, u64::MAX))], "too long for a clock saturates");
}

fn events<'a>(chrome: &'a Value, category: &str) -> Vec<&'a Value> {
    chrome["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == category).collect()
}

/// Process, thread, begin and end in nanoseconds.
fn place(event: &Value) -> (u64, u64, i64, i64) {
    let ns = |field: &str| (event[field].as_f64().unwrap() * 1e3).round() as i64;
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap(), ns("ts"), ns("ts") + ns("dur"))
}

#[test]
fn p07_the_chrome_export_holds_every_span_in_microseconds_nested() {
    let trace = sample();
    let text = trace.to_chrome();
    let chrome: Value = serde_json::from_str(&text).unwrap();
    let all = chrome["traceEvents"].as_array().unwrap();
    let complete: Vec<&Value> = all.iter().filter(|e| e["ph"] == "X").collect();
    for event in &complete {
        assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0, "{event}");
    }
    assert_eq!(complete.iter().map(|e| place(e).2).min(), Some(0), "times are relative to the first");

    // Perfetto takes threads of equal number for one, and thread 0 for the first of its process
    let ids: std::collections::BTreeSet<(u64, u64)> = complete.iter().map(|e| (place(e).0, place(e).1)).collect();
    let threads: std::collections::BTreeSet<u64> = ids.iter().map(|id| id.1).collect();
    assert!(threads.len() == ids.len() && !threads.contains(&0), "{ids:?}");

    // every process and thread that is used has a name
    let named = |what: &str, pid: u64, tid: Option<u64>| {
        all.iter().any(|e| {
            e["ph"] == "M"
                && e["name"] == what
                && e["pid"] == pid
                && tid.is_none_or(|tid| e["tid"] == tid)
                && !e["args"]["name"].as_str().unwrap().is_empty()
        })
    };
    for event in &complete {
        let (pid, tid, ..) = place(event);
        assert!(named("process_name", pid, None) && named("thread_name", pid, Some(tid)), "{event}");
    }

    let dispatches = events(&chrome, "dispatch");
    let timed: usize = trace.frames.iter().map(|f| f.times.iter().flatten().count()).sum();
    assert_eq!(dispatches.len(), timed);
    let sum: i64 = dispatches.iter().map(|e| place(e).3 - place(e).2).sum();
    assert_eq!(sum as u64, trace.frames.iter().filter_map(|f| f.busy_ns()).sum::<u64>());
    assert!(dispatches.iter().any(|e| e["name"] == "blocks.0.b, \"quoted\""));
    assert_eq!(dispatches[0]["args"]["kernel"], "matmul");
    let (_, _, begin, end) = place(dispatches[0]);
    assert_eq!((begin, end), (51_000, 53_000), "a frame's begin, its submit, then the device's own time");

    // compile with two stages, two frames with three calls
    assert_eq!(events(&chrome, "host").len(), 3 + 2 * 4);
    // the first frame's layer and both of its dispatches; the second lacks a time
    let layers = events(&chrome, "layer");
    let names: Vec<&str> = layers.iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["frame 0", "blocks.0"]);

    assert!(nest(&complete));
}

/// Whether events of one thread lie in each other or apart.
fn nest(complete: &[&Value]) -> bool {
    complete.iter().all(|a| {
        complete.iter().all(|b| {
            let ((pa, ta, a0, a1), (pb, tb, b0, b1)) = (place(a), place(b));
            let apart = a1 <= b0 || b1 <= a0 || (a0 <= b0 && b1 <= a1) || (b0 <= a0 && a1 <= b1);
            (pa, ta) != (pb, tb) || apart
        })
    })
}

#[test]
fn p10_what_is_not_in_a_kernel_is_shown_as_gaps() {
    let mut trace = sample();
    trace.dispatches.truncate(2);
    trace.frames.truncate(1);
    let frame = &mut trace.frames[0];
    frame.times = vec![Some((0, 2_000)), Some((3_500, 4_500))];
    assert_eq!((frame.gpu_ns(), frame.busy_ns(), frame.gaps_ns()), (Some(4_500), Some(3_000), Some(1_500)));
    assert_eq!(
        trace.to_string(),
        "fused on card (vulkan, driver 1): 1 submits, 2 dispatches\nGPU 4.5 µs, kernels 3.0 µs, gaps 1.5 µs, encode 1.0 \
         µs, wall 10.0 µs\n  matmul: 2 calls, 3.0 µs, 666.7 GFLOP/s\n        2.0 µs     500.0 GFLOP/s  blocks.0.a \
         (matmul)\n        1.0 µs    1000.0 GFLOP/s  blocks.0.b, \"quoted\" (matmul)\n"
    );
    trace.frames[0].times = vec![None, Some((0, 5))];
    assert!(trace.to_string().contains("matmul: 2 calls, unavailable\n"));
    // where dispatches overlap, gaps are what none of them covers
    trace.frames[0].times = vec![Some((0, 3_000)), Some((1_000, 2_000))];
    let frame = &trace.frames[0];
    assert_eq!((frame.gpu_ns(), frame.busy_ns(), frame.gaps_ns()), (Some(3_000), Some(4_000), Some(0)));
}

#[test]
fn several_runs_are_shown_by_their_medians() {
    let trace = sample();
    assert_eq!(trace.dispatch_stats(0).map(|s| (s.count, s.min, s.median)), Some((2, 2_000, 2_250.0)));
    assert_eq!(trace.dispatch_stats(1).map(|s| s.count), Some(1));
    let words = trace.to_string();
    assert!(
        words.starts_with("fused on card (vulkan, driver 1): medians of 2 runs, 1 submits, 3 dispatches\n"),
        "{words}"
    );
    let none = Trace { frames: Vec::new(), ..trace };
    assert_eq!(none.to_string(), "fused on card (vulkan, driver 1): 3 dispatches, no run yet\n");
}

#[test]
fn csv_has_a_row_for_each_dispatch_of_each_run() {
    let text = sample().to_csv();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 6);
    assert_eq!(lines[1], "0,0,blocks.0.a,matmul,4,2,1,1000000,1000,0,2000,2000,1");
    assert_eq!(lines[2], "0,1,\"blocks.0.b, \"\"quoted\"\"\",matmul,4,2,1,1000000,1000,3500,4500,1000,1");
    assert_eq!(lines[5], "1,1,\"blocks.0.b, \"\"quoted\"\"\",matmul,4,2,1,1000000,1000,,,,");
}

#[test]
fn times_that_are_parts_of_one_say_so_everywhere() {
    let mut trace = sample();
    trace.frames.truncate(1);
    trace.frames[0].shared = vec![(1, 2)];
    assert_eq!(trace.check(), Ok(()));
    let with: Vec<_> = (0..4).map(|i| trace.frames[0].timed_with(i)).collect();
    assert_eq!(with, [None, Some((1, 2)), Some((1, 2)), None]);
    let together: Vec<String> = trace.to_csv().lines().map(|l| l.rsplit(',').next().unwrap().into()).collect();
    assert_eq!(together, ["timed_together", "1", "2", "2"]);
    let chrome: Value = serde_json::from_str(&trace.to_chrome()).unwrap();
    let together: Vec<_> = events(&chrome, "dispatch").iter().map(|e| e["args"]["timed_together"].as_u64()).collect();
    assert_eq!(together, [None, Some(2), Some(2)]);
    let words = trace.to_string();
    assert!(words.contains("\n  matmul: 2 calls, ~3.0 µs, "), "{words}");
    assert!(words.contains("\n  norm: 1 calls, ~1.5 µs, "), "{words}");
    assert!(words.contains("\n        2.0 µs     500.0 GFLOP/s  blocks.0.a "), "{words}");
    assert!(words.contains("\n       ~1.5 µs     666.7 GFLOP/s  head "), "{words}");
}

#[test]
fn a_file_of_the_version_before_has_no_times_in_common() {
    let text = sample().to_json().replace(&format!("\"version\":{VERSION}"), "\"version\":2");
    let text = text.replace("\"shared\":[],", "");
    assert!(!text.contains("shared") && text.contains("\"version\":2"));
    assert_eq!(Trace::from_json(text.as_bytes()), Ok(sample()));
}

#[test]
fn a_trace_comes_back_from_its_file_as_it_was() {
    assert_eq!(Trace::from_json(sample().to_json().as_bytes()), Ok(sample()));
    assert_eq!(Trace::from_json(Trace::default().to_json().as_bytes()), Ok(Trace::default()));
}

/// The error of a trace in which something was changed.
fn damaged(change: impl Fn(&mut Trace)) -> String {
    let mut trace = sample();
    change(&mut trace);
    let error = Trace::from_json(trace.to_json().as_bytes()).expect_err("the change does damage");
    assert_eq!(trace.check().as_ref(), Err(&error));
    error.to_string()
}

#[test]
fn damage_is_named_with_its_place() {
    assert_eq!(
        damaged(|t| t.dispatches[1].kernel = 7),
        "dispatch 1 (\"blocks.0.b, \"quoted\"\") names kernel 7 of 2; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.dispatches[0].node = usize::MAX),
        "dispatch 0 (\"blocks.0.a\") names node 18446744073709551615 of 2; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.graph.after[1].inputs = vec![1]),
        "node 1 (\"y\") of the graph after names node 1 of 1; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.graph.before[0].becomes = Some(2)),
        "node 0 (\"x\") of the graph before names node 2 of 2; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.memory.tensors[0].slot = Some(1)),
        "tensor 0 (\"blocks.0.a\") names slot 1 of 1; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.memory.tensors[0].alive = Some((0, 4))),
        "tensor 0 (\"blocks.0.a\") names dispatch 4 of 4; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.frames[1].times = vec![None; 2]),
        "frame 1 has 2 times for 3 dispatches; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.frames[0].times[0] = Some((9, 8))),
        "\"blocks.0.a\" of frame 0 ends at 8 before it begins at 9; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.frames[1].shared = vec![(1, 3)]),
        "a group that frame 1 times together names dispatch 3 of 3; the file is damaged, record it again"
    );
    let alone = "frame 0 times dispatches 2 to 2 together, where two or more from 2 on can be; the file is damaged, \
                 record it again";
    assert_eq!(damaged(|t| t.frames[0].shared = vec![(0, 1), (2, 2)]), alone);
    assert_eq!(damaged(|t| t.frames[0].shared = vec![(0, 1), (1, 2)]), alone.replace("2 to 2", "1 to 2"));
    assert_eq!(
        damaged(|t| t.frames[0].host[0].begin = 1_000),
        "\"encode\" of frame 0 ends at 900 before it begins at 1000; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.frames[1].host[1].begin = 500),
        "\"encode\" of frame 1 ends at 900, before \"submit\" does that begins in it; the file is damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.frames[0].times[0] = Some((0, u64::MAX))),
        "\"blocks.0.a\" of frame 0 is 18446744073709551615, which no run gives (0 to 9.007199254740992e15); the file is \
         damaged, record it again"
    );
    assert_eq!(
        damaged(|t| t.dispatches[0].flops = -1.0),
        "FLOPs of dispatch 0 (\"blocks.0.a\") is -1e0, which no run gives (0 to 1e24); the file is damaged, record it \
         again"
    );
    assert_eq!(
        damaged(|t| t.memory.slots[0] = 1 << 60),
        "slot 0 is 1152921504606846976, which no run gives (0 to 9.007199254740992e15); the file is damaged, record it \
         again"
    );
}

fn refused(text: &str) -> String {
    Trace::from_json(text.as_bytes()).expect_err(text).to_string()
}

#[test]
fn what_is_no_trace_is_refused_with_what_to_do() {
    let other = sample().to_json().replace(&format!("\"version\":{VERSION}"), "\"version\":99");
    assert_eq!(
        refused(&other),
        "the trace has version 99, this kiln reads versions 2 to 3; record it again, or use the kiln that wrote \
         it"
    );
    assert_eq!(
        refused("{\"version\":1,\"adapter\":\"card\",\"spans\":[]}"),
        "the trace has version 1, this kiln reads versions 2 to 3; record it again, or use the kiln that wrote \
         it"
    );
    assert_eq!(
        refused("{\"traceEvents\":[]}"),
        "not a kiln trace: \"format\" is not \"kiln-trace\"; open a file that `--trace` wrote"
    );
    assert_eq!(
        refused("{\"format\":\"kiln-trace\"}"),
        "not a kiln trace: \"version\" is missing; open a file that `--trace` wrote"
    );
    assert_eq!(refused(""), "the trace ends early, in line 1: it was cut off; write or copy it again");
    assert_eq!(
        refused("[1, 2]"),
        "not a kiln trace: invalid type: integer `1`, expected a string at line 1 column 2; open a file that `--trace` \
         wrote"
    );
    let infinite = sample().to_json().replace("1000000.0", "1e999");
    assert!(refused(&infinite).starts_with("not a kiln trace: number out of range"), "{}", refused(&infinite));
    let deep = format!("{{\"format\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&deep).starts_with("not a kiln trace: "), "{}", refused(&deep));
    assert!(matches!(Trace::from_json(&[0xff, 0xfe, 0]), Err(TraceError::Malformed { .. })));
}

#[test]
fn a_file_that_was_cut_off_anywhere_says_so() {
    let text = sample().to_json();
    for end in 0..text.len() {
        let error = Trace::from_json(&text.as_bytes()[..end]).expect_err("it is cut off");
        assert!(matches!(error, TraceError::Truncated { line: 0 | 1 }), "at {end}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Dispatches that overlap, run out of their order or lack times, and frames that overlap.
    #[test]
    fn whatever_the_times_are_every_event_is_there_and_threads_nest(
        frames in prop::collection::vec((0u64..60, prop::collection::vec(prop::option::of((0u64..40, 0u64..20)), 6)), 1..4),
    ) {
        let mut trace = sample();
        trace.dispatches = ["a.0.x", "a.0.y", "a.1.x", "a.1.y", "b", "a.1.x"]
            .map(|name| Dispatch { name: name.into(), ..trace.dispatches[0].clone() })
            .to_vec();
        let like = trace.frames[0].clone();
        trace.frames = frames
            .into_iter()
            .map(|(begin, times)| Frame {
                begin,
                wall_ns: 50,
                host: vec![HostSpan { name: "wait".into(), thread: 0, begin: 5, end: 45 }],
                gpu_at: 3,
                times: times.into_iter().map(|t| t.map(|(begin, long)| (begin, begin + long))).collect(),
                ..like.clone()
            })
            .collect();
        prop_assert_eq!(trace.check(), Ok(()));
        let chrome: Value = serde_json::from_str(&trace.to_chrome()).unwrap();
        let all = chrome["traceEvents"].as_array().unwrap();
        let complete: Vec<&Value> = all.iter().filter(|e| e["ph"] == "X").collect();
        prop_assert!(nest(&complete), "{}", trace.to_chrome());
        let timed: usize = trace.frames.iter().map(|f| f.times.iter().flatten().count()).sum();
        prop_assert_eq!(events(&chrome, "dispatch").len(), timed);
        prop_assert_eq!(events(&chrome, "host").len(), 1 + 2 + 2 * trace.frames.len());
    }

    /// Whatever is accepted can be exported and shown.
    #[test]
    fn no_damaged_file_panics(places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut text = sample().to_json().into_bytes();
        for (at, byte) in places {
            let at = at.index(text.len());
            text[at] = if byte % 2 == 0 { b'0' + byte % 10 } else { byte };
        }
        if let Ok(trace) = Trace::from_json(&text) {
            let chrome: Value = serde_json::from_str(&trace.to_chrome()).unwrap();
            prop_assert!(chrome["traceEvents"].is_array());
            prop_assert!(!trace.to_csv().is_empty() && !trace.to_string().is_empty());
        }
    }
}
