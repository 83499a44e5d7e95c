//! Graphs, memory, fusion and replays on the adapter: the E rows of the public bug reports that kiln's tests are
//! numbered by.

#[path = "../device/mod.rs"]
mod device;
mod states;

use device::{
    Counts, Named, assert_close, check, fill, fill_as, named, noise, own_session, poisoned, refs, run, session,
};
use kiln::Error;
use kiln::caps::DeviceCaps;
use kiln::graph::{Binary, Builder, DType, Graph, GraphError, Reduction, TensorType, Unary, ValueId};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Session, compile};
use kiln::tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

fn f32(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

/// Shared slots give the bits that buffers of their own give, and both are the reference's.
fn same_as_without_aliasing(session: &Session, graph: &Graph, params: &Named, inputs: &Named) {
    let expected = evaluate(graph, params, inputs).unwrap();
    for mode in MODES {
        let shared = run(session, graph, params, inputs, &poisoned(mode));
        let apart = run(session, graph, params, inputs, &CompileOptions { alias: false, ..poisoned(mode) });
        assert_eq!(shared, apart, "{mode}");
        assert_close(&mode.to_string(), &shared, &expected, 1e-5);
    }
}

#[test]
fn e01_a_buffer_is_not_reused_before_its_last_reader() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let positions = b.input("positions", TensorType::new(DType::I32, [1, 194])).unwrap();
    let frequencies = b.input("frequencies", f32(&[32])).unwrap();
    let x = b.input("x", f32(&[1, 194, 960])).unwrap();
    let positions = b.cast(positions, DType::F32).unwrap();
    let positions = b.reshape(positions, [1, 194, 1]).unwrap();
    let two = b.constant(2.0, f32(&[])).unwrap();
    let squares = b.binary(Binary::Pow, x, two).unwrap();
    let mean = b.reduce(Reduction::Mean, squares, &[2], true).unwrap();
    let eps = b.constant(1e-6, f32(&[])).unwrap();
    let mean = b.add(mean, eps).unwrap();
    let angles = b.broadcast(positions, [1, 194, 32]).unwrap();
    let angles = b.div(angles, frequencies).unwrap();
    let root = b.unary(Unary::Rsqrt, mean).unwrap();
    let scaled = b.mul(x, root).unwrap();
    b.output("angles", angles).unwrap();
    b.output("scaled", scaled).unwrap();
    let graph = b.finish().unwrap();
    let inputs = named([
        ("positions", fill_as(DType::I32, &[1, 194], |i| i as f64)),
        ("frequencies", fill(&[32], |i| 1.0 + i as f64)),
        ("x", fill(&[1, 194, 960], |i| noise(1, i))),
    ]);
    same_as_without_aliasing(session, &graph, &Named::new(), &inputs);
}

#[test]
fn e02_embedding_linear_and_norm_in_place() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let tokens = b.input("tokens", TensorType::new(DType::I32, [96, 8])).unwrap();
    let table = b.parameter("table", f32(&[5, 192])).unwrap();
    let weight = b.parameter("weight", f32(&[192, 192])).unwrap();
    let bias = b.parameter("bias", f32(&[192])).unwrap();
    let gamma = b.parameter("gamma", f32(&[192])).unwrap();
    let x = b.embedding(table, tokens).unwrap();
    let y = b.linear(x, weight, Some(bias)).unwrap();
    let y = b.relu(y).unwrap();
    let y = b.add(x, y).unwrap();
    let y = b.rmsnorm(y, gamma, 1e-5).unwrap();
    let y = b.linear(y, weight, None).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let params = named([
        ("table", fill(&[5, 192], |i| noise(1, i))),
        ("weight", fill(&[192, 192], |i| noise(2, i) / 8.0)),
        ("bias", fill(&[192], |i| noise(3, i))),
        ("gamma", fill(&[192], |i| noise(4, i))),
    ]);
    let inputs = named([("tokens", fill_as(DType::I32, &[96, 8], |i| (i * 7 % 5) as f64))]);
    same_as_without_aliasing(session, &graph, &params, &inputs);
}

#[test]
fn e03_two_views_of_one_tensor_and_an_output_that_takes_its_place() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 9, 7])).unwrap();
    // views at offsets that no binding can start at, of a tensor that the kernel could overwrite
    let h = b.unary(Unary::Tanh, x).unwrap();
    let low = b.slice(h, 1, 0, 4).unwrap();
    let high = b.slice(h, 1, 5, 4).unwrap();
    let sum = b.add(low, high).unwrap();
    let twice = b.add(sum, sum).unwrap();
    let turned = b.permute(twice, &[0, 2, 1]).unwrap();
    let product = b.matmul(twice, turned).unwrap();
    let rolled = [b.slice(h, 2, 3, 4).unwrap(), b.slice(h, 2, 0, 3).unwrap()];
    let rolled = b.concat(&rolled, 2).unwrap();
    let with_itself = b.mul(h, h).unwrap();
    for (name, value) in [("sum", sum), ("product", product), ("rolled", rolled), ("with_itself", with_itself)] {
        b.output(name, value).unwrap();
    }
    let graph = b.finish().unwrap();
    let inputs = named([("x", fill(&[2, 9, 7], |i| noise(1, i)))]);
    same_as_without_aliasing(session, &graph, &Named::new(), &inputs);
    for mode in MODES {
        check(session, &graph, &Named::new(), &inputs, mode, 1e-5);
    }
}

#[test]
fn an_input_is_bounded_where_it_indexes_alone() {
    let mut b = Builder::new();
    let ids = b.input("ids", TensorType::new(DType::I32, [3, 4])).unwrap();
    for (name, rows, start) in [("users", 10, 0), ("items", 100, 1), ("more users", 10, 2)] {
        let table = b.parameter(name, f32(&[rows, 2])).unwrap();
        let column = b.slice(ids, 1, start, 1).unwrap();
        let y = b.embedding(table, column).unwrap();
        b.output(&format!("of {name}"), y).unwrap();
    }
    let graph = b.finish().unwrap();
    let ranges = |starts: &[usize], len| Some(starts.iter().map(|start| *start..start + len).collect::<Vec<_>>());
    let bounds: Vec<_> = graph.index_bounds().into_iter().map(|(_, b)| (b.count, b.elements)).collect();
    assert_eq!(bounds, [(10, ranges(&[0, 2, 4, 6, 8, 10], 1)), (100, ranges(&[1, 5, 9], 1))]);
    let Some(session) = session() else { return };
    let params: Named =
        graph.layout.iter().map(|(_, s)| (s.name.clone(), Tensor::zeros(f32(s.shape.dims())))).collect();
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    let run = |ids: [i32; 12]| program.run(&[("ids", &Tensor::i32([3, 4], &ids))]);
    run([9, 50, 9, -1, 0, 99, 0, 1000, 0, 0, 0, 0]).unwrap();
    let error = run([0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0]).unwrap_err().to_string();
    assert!(error.contains("takes 0 to 9"), "{error}");
}

/// y = 3x over n elements.
fn triple(n: usize) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[n])).unwrap();
    let y = b.scale(x, 3.0).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

#[test]
fn e04_a_run_s_results_are_its_own() {
    let Some(session) = session() else { return };
    let graph = triple(1000);
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
        let inputs: Vec<Tensor> = (0..8).map(|k| fill(&[1000], |i| (k * 1000 + i) as f64)).collect();
        let runs: Vec<_> = inputs.iter().map(|x| program.submit(&[("x", x)]).unwrap()).collect();
        let first = program.run(&[("x", &inputs[0])]).unwrap();
        for (k, run) in runs.into_iter().enumerate().rev() {
            let y = run.wait().unwrap();
            let expected: Vec<f32> = inputs[k].to_f32().iter().map(|x| 3.0 * x).collect();
            assert_eq!(y["y"].to_f32(), expected, "{mode}: run {k}");
        }
        assert_eq!(first["y"].to_f32()[999], 2997.0, "a result read after later runs");
    }
}

#[test]
fn e04_threads_that_share_a_program_do_not_mix_inputs() {
    let Some(session) = session() else { return };
    let graph = triple(257);
    for mode in [Mode::Eager, Mode::Fused] {
        let program = session.compile(&graph, &Named::new(), &CompileOptions::mode(mode)).unwrap();
        std::thread::scope(|scope| {
            for k in 0..4 {
                let program = &program;
                scope.spawn(move || {
                    for step in 0..50 {
                        let x = fill(&[257], |i| (k * 100_000 + step * 1000 + i) as f64);
                        let y = program.run(&[("x", &x)]).unwrap();
                        let expected: Vec<f32> = x.to_f32().iter().map(|x| 3.0 * x).collect();
                        assert_eq!(y["y"].to_f32(), expected);
                    }
                });
            }
        });
    }
}

#[test]
fn e07_other_programs_between_two_replays() {
    let Some(session) = session() else { return };
    let one = session.compile(&triple(64), &Named::new(), &CompileOptions::default()).unwrap();
    let x = fill(&[64], |i| noise(1, i));
    let before = one.run(&[("x", &x)]).unwrap();
    let pending = one.submit(&[("x", &x)]).unwrap();
    for n in [64, 65, 4096] {
        let other = session.compile(&triple(n), &Named::new(), &poisoned(Mode::Fused)).unwrap();
        other.run(&[("x", &fill(&[n], |_| 7.0))]).unwrap();
    }
    assert_eq!(one.run(&[("x", &x)]).unwrap(), before);
    assert_eq!(pending.wait().unwrap(), before);
}

#[test]
fn e08_the_sum_of_a_softmax_is_not_folded_to_one() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3, 11])).unwrap();
    let y = b.softmax(x, 1).unwrap();
    let y = b.sum(y, &[1]).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let x = fill(&[3, 11], |i| if i == 15 { f64::NAN } else { 5.0 * noise(1, i) });
    for mode in MODES {
        let y = run(session, &graph, &Named::new(), &named([("x", x.clone())]), &poisoned(mode))["y"].to_f64();
        assert!(y[1].is_nan(), "{mode}: {y:?}");
        assert!([y[0], y[2]].iter().all(|s| (s - 1.0).abs() < 1e-6), "{mode}: {y:?}");
        check(session, &graph, &Named::new(), &named([("x", x.clone())]), mode, 1e-6);
    }
}

/// (m, k) by (k, n).
fn product(m: usize, k: usize, n: usize) -> Graph {
    let mut b = Builder::new();
    let a = b.input("a", f32(&[m, k])).unwrap();
    let w = b.input("w", f32(&[k, n])).unwrap();
    let y = b.matmul(a, w).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

#[test]
fn e09_dimensions_that_were_equal_and_differ_later() {
    let Some(session) = session() else { return };
    for [m, k, n] in [[5, 5, 5], [5, 7, 3], [4, 4, 9], [16, 16, 16], [16, 33, 16]] {
        let inputs = named([("a", fill(&[m, k], |i| noise(1, i))), ("w", fill(&[k, n], |i| noise(2, i)))]);
        check(session, &product(m, k, n), &Named::new(), &inputs, Mode::Fused, 1e-5);
    }
    let program = session.compile(&product(5, 5, 5), &Named::new(), &CompileOptions::default()).unwrap();
    let (a, w) = (fill(&[5, 7], |_| 1.0), fill(&[7, 3], |_| 1.0));
    let error = program.run(&[("a", &a), ("w", &w)]).unwrap_err();
    let expected =
        "input \"a\": the program was compiled for f32 (5, 5), got f32 (5, 7); compile one for this shape, or pad";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn e12_a_chain_of_twelve_inputs_is_cut_at_eight_bindings() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let names: Vec<String> = (0..12).map(|i| format!("x{i}")).collect();
    let inputs: Vec<_> = names.iter().map(|n| b.input(n, f32(&[33])).unwrap()).collect();
    let mut sum = inputs[0];
    for x in &inputs[1..] {
        sum = b.add(sum, *x).unwrap();
    }
    let y = b.relu(sum).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let values: Named =
        names.iter().enumerate().map(|(k, n)| (n.clone(), fill(&[33], |i| noise(k as u64, i)))).collect();
    check(session, &graph, &Named::new(), &values, Mode::Fused, 1e-6);
    for (limit, dispatches) in [(8, 2), (4, 6), (3, 12)] {
        let limits = DeviceCaps { max_storage_buffers: limit, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
        let program = session.compile(&graph, &Named::new(), &options).unwrap();
        let recording = &program.compiled().recording;
        assert!(recording.dispatches.iter().all(|d| d.bindings.len() <= limit as usize), "{recording}");
        assert!(recording.dispatches.len() <= dispatches, "{limit} buffers: {recording}");
        let expected = evaluate(&graph, &Named::new(), &values).unwrap();
        assert_close(&format!("{limit} buffers"), &program.run(&refs(&values)).unwrap(), &expected, 1e-6);
    }
}

#[test]
fn e14_tensors_of_odd_bytes_come_back_exactly() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let mut inputs = Named::new();
    let types = [DType::F32, DType::I32, DType::U32, DType::Bool, DType::F16];
    for dtype in types.into_iter().filter(|d| *d != DType::F16 || session.caps().f16) {
        for n in [1, 2, 3, 7, 13, 25] {
            let name = format!("{dtype} {n}");
            let x = b.input(&name, TensorType::new(dtype, [n])).unwrap();
            b.output(&name, x).unwrap();
            // integers and floats that a conversion through another type would change
            let value = |i: usize| match dtype {
                DType::I32 => -2_147_483_648.0 + i as f64,
                DType::U32 => 4_294_967_295.0 - i as f64,
                DType::Bool => (i % 2) as f64,
                DType::F16 => 65_504.0 - 32.0 * i as f64,
                _ => f64::from(f32::MIN_POSITIVE) * (i + 1) as f64,
            };
            inputs.insert(name, fill_as(dtype, &[n], value));
        }
    }
    let graph = b.finish().unwrap();
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
        for _ in 0..2 {
            assert_eq!(program.run(&refs(&inputs)).unwrap(), inputs, "{mode}");
        }
    }
}

#[test]
fn e15_shapes_that_do_not_fit_are_named_when_the_graph_is_built() {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3])).unwrap();
    let y = b.input("y", f32(&[4, 5])).unwrap();
    let error = b.matmul(x, y).unwrap_err();
    assert_eq!(error.to_string(), "matmul \"matmul\": inner sizes differ: left (2, 3), right (4, 5) (dimension 1)");
    let w = b.parameter("w", f32(&[5, 3])).unwrap();
    let bias = b.parameter("bias", f32(&[7])).unwrap();
    let error = b.scope("layer", |b| b.linear(x, w, Some(bias))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "linear \"w\": the bias must be a vector of the output size: left (2, 5), right (7) (dimension 1)"
    );
    let turned = b.parameter("fc2.weight", f32(&[3, 5])).unwrap();
    let error = b.linear(x, turned, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "linear \"fc2\": inner sizes differ, the weight is (out, in), here (5, 3): left (2, 3), right (3, 5) (dimension 1)"
    );
    let other = b.parameter("other", f32(&[6, 4])).unwrap();
    let error = b.linear(x, other, None).unwrap_err();
    assert_eq!(error.to_string(), "linear \"other\": inner sizes differ: left (2, 3), right (6, 4) (dimension 1)");
    assert_eq!(b.concat(&[], 0).unwrap_err().to_string(), "concat \"concat\": expected at least 1 inputs, got 0");
    let error = b.scope("join", |b| b.concat(&[x, y], 0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "concat \"join.concat\": input 1 differs off the axis: left (2, 3), right (4, 5) (dimension 1)"
    );
    let error = b.scope("residual", |b| b.add(x, y)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "add \"residual.add\": shapes do not broadcast: left (2, 3), right (4, 5) (dimension 0)"
    );
}

#[test]
fn scalars_of_norms_and_attention_that_make_nan_are_refused_when_the_graph_is_built() {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 4])).unwrap();
    let heads = b.input("heads", f32(&[1, 2, 4])).unwrap();
    let gamma = b.parameter("gamma", f32(&[4])).unwrap();
    let text = |made: Result<ValueId, GraphError>| made.unwrap_err().to_string();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (eps, got) in [(nan, "NaN"), (inf, "inf"), (-inf, "-inf"), (-1e-5, "-0.00001")] {
        let rest = format!("eps: expected a finite number of at least 0, got {got}");
        assert_eq!(text(b.layernorm(x, gamma, gamma, eps)), format!("layernorm \"layernorm\": {rest}"));
        assert_eq!(text(b.rmsnorm(x, gamma, eps)), format!("rmsnorm \"rmsnorm\": {rest}"));
    }
    for (scale, got) in [(nan, "NaN"), (inf, "inf"), (-inf, "-inf")] {
        assert_eq!(
            text(b.attention(heads, heads, heads, 2, scale, true, None, None)),
            format!("attention \"attention\": scale: expected a finite number, got {got}")
        );
    }
    // all other arithmetic is that of IEEE 754
    b.scale(x, nan).unwrap();
    b.layernorm(x, gamma, gamma, 0.0).unwrap();
    b.attention(heads, heads, heads, 2, -0.5, true, None, None).unwrap();
    b.constant(nan, f32(&[2])).unwrap();
}

#[test]
fn e17_another_batch_than_compiled_for_is_refused() {
    let Some(session) = session() else { return };
    let program = session.compile(&triple(6), &Named::new(), &CompileOptions::default()).unwrap();
    for n in [1, 5, 7, 600] {
        let error = program.run(&[("x", &fill(&[n], |_| 1.0))]).unwrap_err();
        assert!(matches!(&error, Error::InputType { got, .. } if got.shape.dims() == [n]), "{error}");
    }
    assert_eq!(program.run(&[("x", &fill(&[6], |_| 1.0))]).unwrap()["y"].to_f32(), [3.0; 6], "still usable");
}

/// n dispatches as written, each reading the one before.
fn chain(n: usize) -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", f32(&[8])).unwrap();
    for _ in 0..n {
        x = b.unary(Unary::Neg, x).unwrap();
    }
    b.output("y", x).unwrap();
    b.finish().unwrap()
}

#[test]
fn e18_a_thousand_dispatches_in_one_command_buffer() {
    let Some(session) = own_session() else { return };
    let x = fill(&[8], |i| i as f64);
    let mut best = Vec::new();
    for n in [250, 1000] {
        let start = Counts::of(&session);
        let program = session.compile(&chain(n), &Named::new(), &CompileOptions::mode(Mode::Recorded)).unwrap();
        let compiled = Counts::of(&session);
        let made = compiled.since(start);
        // the first reads the input, all others work in place
        assert_eq!((made.bind_groups, made.pipelines, made.submits), (n as u64, 2, 0));
        let mut least = u64::MAX;
        for _ in 0..10 {
            let run = program.submit(&[("x", &x)]).unwrap();
            least = least.min(run.encode_ns());
            assert_eq!(run.submits(), 1);
            assert_eq!(run.wait().unwrap()["y"], x);
        }
        let done = Counts::of(&session).since(compiled);
        let expected =
            Counts { submits: 10, passes: 10, dispatches: 10 * n as u64, bind_groups: 0, pipelines: 0, uploads: 10 };
        assert_eq!(done, expected);
        best.push(least);
    }
    assert!(best[1] < 16 * best[0], "encoding 4 times as much took {best:?} ns");
}

/// Polls on this thread, parked in between, as an executor does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        while !unpark.1.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

#[test]
fn e19_results_come_back_in_an_async_context() {
    let Some(session) = session() else { return };
    let program = session.compile(&triple(100), &Named::new(), &CompileOptions::default()).unwrap();
    let inputs: Vec<Tensor> = (0..4).map(|k| fill(&[100], |i| (k + i) as f64)).collect();
    let all = async {
        let runs: Vec<_> = inputs.iter().map(|x| program.submit(&[("x", x)]).unwrap()).collect();
        let mut sums = Vec::new();
        for run in runs {
            // a blocking call of the library inside an executor's thread does not stop the run that is awaited
            session.gpu().caps();
            sums.push(run.finish().await.unwrap()["y"].to_f64().iter().sum::<f64>());
        }
        program.submit_unread(&[("x", &inputs[0])]).unwrap().finish().await.unwrap();
        sums
    };
    assert_eq!(block_on(all), [14_850.0, 15_150.0, 15_450.0, 15_750.0]);
    let one = async { program.submit(&[("x", &inputs[0])]).unwrap().finish().await.unwrap() };
    assert_eq!(pollster::block_on(one)["y"].to_f32()[99], 297.0);
}

#[test]
fn every_recording_of_these_graphs_is_printed_the_same_each_time() {
    for graph in [triple(6), product(3, 4, 5), chain(5)] {
        let print = || {
            let compiled = compile(&graph, &DeviceCaps::PORTABLE, &CompileOptions::default()).unwrap();
            format!("{}{}{}{}", compiled.graph, compiled.selected, compiled.plan, compiled.recording)
        };
        assert_eq!(print(), print());
    }
}
