//! In: runs on the machine's adapter; out: their traces, held against what is known of the runs. Section ids are those
//! of public bug reports on profilers.

mod device;

use device::{Named, fill, noise, poisoned, session};
use kiln::caps::DeviceCaps;
use kiln::gpu::Profiling;
use kiln::graph::{Builder, DType, Graph, TensorType, Unary};
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Init, Loss, init};
use kiln::select::Overlap;
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use kiln::trace::{TensorKind, Trace, group_ends};
use kiln::train::TrainOptions;

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

/// A chain of dependent ops.
fn chain(n: usize) -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [64])).unwrap();
    for i in 0..n {
        x = b.unary(if i % 2 == 0 { Unary::Tanh } else { Unary::Neg }, x).unwrap();
    }
    b.output("y", x).unwrap();
    b.finish().unwrap()
}

/// A traced run of a chain of 20 dispatches.
fn traced(session: &Session, options: CompileOptions) -> Trace {
    let program = session.compile(&chain(20), &Named::new(), &options).unwrap();
    let x = fill(&[64], |i| noise(1, i));
    let (out, trace) = program.trace(&[("x", &x)]).unwrap();
    assert_eq!(out, program.run(&[("x", &x)]).unwrap(), "profiling changes no result");
    assert_eq!((trace.dispatches.len(), trace.frames.len()), (20, 1));
    assert_eq!(trace.check(), Ok(()));
    trace
}

#[test]
fn p01_without_timestamps_the_wall_clock_is_left() {
    let Some(session) = session() else { return };
    let limits = DeviceCaps { timestamps: false, ..session.caps().clone() };
    let trace = traced(session, CompileOptions { limits: Some(limits), ..poisoned(Mode::Recorded) });
    let frame = &trace.frames[0];
    assert_eq!(frame.times, vec![None; 20]);
    assert_eq!((frame.gpu_ns(), frame.busy_ns(), frame.gaps_ns()), (None, None, None));
    assert!(frame.wall_ns > 0 && frame.encode_ns > 0 && !frame.profiling_split_passes);
    let words = trace.to_string();
    assert!(words.contains("GPU unavailable, kernels unavailable, gaps unavailable, encode "), "{words}");
    assert!(words.contains("elementwise: 20 calls, unavailable\n"), "{words}");
}

#[test]
fn p02_a_run_without_dispatches_has_no_times() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [0, 4])).unwrap();
    let y = b.relu(x).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
        let (out, trace) = program.trace(&[("x", &fill(&[0, 4], |_| 0.0))]).unwrap();
        assert_eq!(out["y"].shape().dims(), [0, 4]);
        let frame = &trace.frames[0];
        assert_eq!((frame.times.len(), frame.gpu_ns(), frame.busy_ns()), (0, None, None));
        assert!(trace.to_string().contains("GPU unavailable"));
        assert_eq!(Trace::from_json(trace.to_json().as_bytes()), Ok(trace));
    }
}

#[test]
fn p05_more_dispatches_than_one_query_set_holds() {
    let Some(session) = session() else { return };
    let program = session.compile(&chain(4200), &Named::new(), &poisoned(Mode::Recorded)).unwrap();
    let x = fill(&[64], |i| noise(1, i));
    let (out, trace) = program.trace(&[("x", &x)]).unwrap();
    assert_eq!(out, program.run(&[("x", &x)]).unwrap());
    let times = &trace.frames[0].times;
    assert_eq!(times.len(), 4200);
    let all = if session.caps().timestamps { 4200 } else { 0 };
    assert_eq!(times.iter().flatten().count(), all);
    assert!(times.iter().flatten().map(|t| t.1).is_sorted(), "each reads what the one before wrote");
}

#[test]
fn p09_a_trace_says_whether_measuring_changed_the_passes() {
    let Some(session) = session() else { return };
    for mode in MODES {
        let options = CompileOptions { fuse: false, lift: false, ..poisoned(mode) };
        let trace = traced(session, options);
        let frame = &trace.frames[0];
        assert_eq!(frame.submits, if mode == Mode::Eager { 20 } else { 1 });
        assert_eq!(frame.profiling_split_passes, frame.passes > frame.submits);
        assert_eq!(trace.options.mode, mode.to_string());
        assert_eq!(trace.device.adapter, session.adapter().name);
    }
}

#[test]
fn a_run_in_several_passes_has_a_time_for_each_dispatch() {
    let Some(session) = session() else { return };
    let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[32, 64])).unwrap();
    for i in 0..3 {
        // two products that need not wait for each other, three times
        let weights = ["left", "right"].map(|n| b.parameter(&format!("{n}{i}"), f32s(&[64, 64])).unwrap());
        let products = weights.map(|w| b.matmul(x, w).unwrap());
        let y = b.add(products[0], products[1]).unwrap();
        b.output(&format!("y{i}"), y).unwrap();
    }
    let graph = b.finish().unwrap();
    let params: Named = (0..6)
        .map(|i| (format!("{}{}", ["left", "right"][i % 2], i / 2), fill(&[64, 64], |j| noise(i as u64, j))))
        .collect();
    let options = CompileOptions { overlap: Overlap::Always, fuse: false, ..poisoned(Mode::Fused) };
    let program = session.compile(&graph, &params, &options).unwrap();
    let passes = program.compiled().recording.passes.len();
    assert!(passes > 1, "{passes} passes");
    let inputs = fill(&[32, 64], |i| noise(7, i));
    for how in [Profiling::Exact, Profiling::Light, Profiling::Exact] {
        let frame = program.submit_profiled(&[("x", &inputs)], how).unwrap().wait_profiled().unwrap().1;
        let trace = Trace { frames: vec![frame], ..program.describe() };
        assert_eq!(trace.check(), Ok(()));
        let times = &trace.frames[0].times;
        assert_eq!(times.len(), program.dispatches());
        if session.caps().timestamps {
            assert!(times.iter().all(Option::is_some), "{how:?}: {times:?}");
        }
    }
}

/// Neighbours of one group.
fn groups(ends: &[usize]) -> Vec<(usize, usize)> {
    let firsts = ends.iter().enumerate().filter(|(i, _)| *i == 0 || ends[i - 1] == *i);
    firsts.map(|(first, end)| (first, end - 1)).filter(|(first, last)| first < last).collect()
}

#[test]
fn after_the_first_run_short_dispatches_are_timed_together_unless_each_is_asked_for() {
    let Some(session) = session() else { return };
    let x = fill(&[64], |i| noise(1, i));
    for (mode, profiling) in
        [(Mode::Recorded, Profiling::Light), (Mode::Recorded, Profiling::Exact), (Mode::Eager, Profiling::Light)]
    {
        let options = CompileOptions { profiling, ..poisoned(mode) };
        let program = session.compile(&chain(20), &Named::new(), &options).unwrap();
        let expected = program.run(&[("x", &x)]).unwrap();
        let mut trace = program.describe();
        for _ in 0..3 {
            let (outputs, frame) = program.profile(&[("x", &x)]).unwrap();
            assert_eq!(outputs, expected);
            trace.frames.push(frame);
        }
        assert_eq!(trace.check(), Ok(()));
        let [first, others @ ..] = &trace.frames[..] else { unreachable!() };
        assert_eq!(first.shared, []);
        let Some(took) = first.times.iter().map(|t| t.map(|(b, e)| e - b)).collect::<Option<Vec<u64>>>() else {
            assert!(!session.caps().timestamps);
            continue;
        };
        // eager has a submit, and so a time, for each
        let light = profiling == Profiling::Light && mode != Mode::Eager;
        let together = if light { groups(&group_ends(&took)) } else { Vec::new() };
        for frame in others {
            assert_eq!(frame.shared, together, "{took:?}");
            assert!(frame.times.iter().all(Option::is_some));
            for (first, last) in &frame.shared {
                let parts = frame.times[*first..=*last].windows(2);
                assert!(parts.map(|w| (w[0].unwrap().1, w[1].unwrap().0)).all(|(end, begin)| end == begin));
            }
        }
    }
}

fn gptlite(session: &Session, mode: Mode) -> Trace {
    let graph = Gptlite::new(GptliteConfig::new(5, 2, 8, 2, 4)).build(1, 3).unwrap();
    let params = init(&graph.layout, Init::Default, 0).unwrap();
    let program = session.compile(&graph, &params, &CompileOptions::mode(mode)).unwrap();
    let mut trace = program.describe();
    let tokens = Tensor::i32([1, 3], &[0, 4, 2]);
    for _ in 0..3 {
        let (outputs, frame) = program.profile(&[("tokens", &tokens)]).unwrap();
        assert_eq!(outputs, program.run(&[("tokens", &tokens)]).unwrap());
        trace.frames.push(frame);
    }
    assert_eq!(trace.check(), Ok(()));
    assert_eq!(Trace::from_json(trace.to_json().as_bytes()).as_ref(), Ok(&trace));
    trace
}

#[test]
fn a_trace_names_stages_kernels_memory_and_what_became_of_each_op() {
    let Some(session) = session() else { return };
    let trace = gptlite(session, Mode::Fused);
    for stage in ["lift", "fuse", "select", "plan", "audit", "record", "buffers", "pipelines", "bind groups", "weights"]
    {
        assert_eq!(trace.compile.iter().filter(|s| s.name == stage).count(), 1, "{stage}");
    }
    let pipelines = trace.compile.iter().find(|s| s.name == "pipelines").unwrap();
    let each: Vec<_> = trace.compile.iter().filter(|s| s.thread > 0).collect();
    assert_eq!(each.len(), trace.kernels.len());
    assert!(each.iter().all(|s| pipelines.begin <= s.begin && s.end <= pipelines.end));
    assert!(trace.kernels.iter().all(|k| k.wgsl.contains("@compute") && !k.key.is_empty()));

    let temps: Vec<_> = trace.memory.tensors.iter().filter(|t| t.kind == TensorKind::Temp).collect();
    assert!(!temps.is_empty() && temps.iter().all(|t| t.alive.is_none() == t.slot.is_none()));
    assert!(trace.memory.naive > trace.memory.total());

    let became = |name: &str| {
        let node = trace.graph.before.iter().find(|n| n.name == name).unwrap_or_else(|| panic!("{name}"));
        node.becomes.map(|i| trace.graph.after[i].name.as_str())
    };
    assert_eq!(became("blocks.0.sa.heads.1.key"), Some("blocks.0.sa.qkv"));
    assert_eq!(became("blocks.0.sa.heads.1.softmax"), Some("blocks.0.sa.attention"));
    assert_eq!(became("blocks.0.sa.heads.0.masked_fill"), Some("blocks.0.sa.attention"));
    assert_eq!(became("blocks.1.ffwd.net.0"), Some("blocks.1.ffwd.net.0"));
    assert_eq!(became("blocks.1.ffwd.net.1.relu"), Some("blocks.1.ffwd.net.0"));
    assert_eq!(became("blocks.0.add"), Some("blocks.0.sa.proj"));
    assert_eq!(became("blocks.0.sa.proj"), Some("blocks.0.sa.proj"));
    assert_eq!(became("add"), Some("blocks.0.ln1.layernorm"));
    assert_eq!(became("tokens"), Some("tokens"));
    assert!(trace.graph.findings.iter().any(|f| f.pass == "attention"));
}

#[test]
fn host_spans_lie_in_their_frame_and_frames_follow_each_other() {
    let Some(session) = session() else { return };
    for (mode, submits) in [(Mode::Fused, 1), (Mode::Eager, 0)] {
        let trace = gptlite(session, mode);
        let submits = if submits == 0 { trace.dispatches.len() } else { submits };
        for frame in &trace.frames {
            for (name, count) in [("check inputs", 1), ("upload", 1), ("submit", submits), ("wait", 1), ("readback", 1)]
            {
                assert_eq!(frame.host.iter().filter(|s| s.name == name).count(), count, "{mode}: {name}");
            }
            assert!(frame.host.iter().all(|s| s.begin <= s.end && s.end <= frame.wall_ns));
            let ends = |name: &str| frame.host.iter().find(|s| s.name == name).map(|s| (s.begin, s.end)).unwrap();
            assert_eq!(frame.gpu_at, ends("submit").0);
            assert!(ends("wait").1 <= ends("readback").0);
        }
        for pair in trace.frames.windows(2) {
            assert!(pair[0].begin + pair[0].wall_ns <= pair[1].begin);
        }
        assert!(trace.compile.iter().all(|s| s.end <= trace.frames[0].begin));
    }
}

#[test]
fn a_graph_as_written_becomes_itself() {
    let Some(session) = session() else { return };
    let trace = gptlite(session, Mode::Recorded);
    assert!(trace.graph.findings.is_empty());
    let became: Vec<_> = trace.graph.before.iter().map(|n| n.becomes).collect();
    assert_eq!(became, (0..trace.graph.after.len()).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_profiled_training_step_is_a_step_like_others() {
    let Some(session) = session() else { return };
    let model = Dnn::new(DnnConfig { in_size: 4, width: 8, depth: 2, out_size: 3 });
    let graph = model.build_training(8, Loss::CrossEntropy).unwrap();
    let params = init(&graph.layout, Init::Default, 0).unwrap();
    let trainer = || session.trainer(&graph, &params, &TrainOptions::default(), &CompileOptions::default()).unwrap();
    let (plain, profiled) = (trainer(), trainer());
    let (input, targets) = (fill(&[8, 4], |i| noise(2, i)), Tensor::i32([8], &[0, 1, 2, 0, 1, 2, 0, 1]));
    let batch = [("input", &input), ("targets", &targets)];
    for step in 0..3 {
        let (report, frame) = profiled.profile(&batch).unwrap();
        assert_eq!(report, plain.step(&batch).unwrap());
        assert_eq!((report.step, profiled.steps()), (step, step + 1));
        assert_eq!((frame.submits, frame.times.len()), (1, profiled.program().dispatches()));
    }
    let trace = profiled.program().describe();
    assert_eq!(trace.check(), Ok(()));
    assert!(trace.graph.before.iter().any(|n| n.becomes.is_some()));
    let own = profiled.profile(&[batch[0], batch[1], ("scalars", &input)]).unwrap_err();
    assert!(own.to_string().contains("\"scalars\""), "{own}");
}
