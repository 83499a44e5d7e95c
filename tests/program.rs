//! A program's life on the adapter: what is made once, what a run costs, states, and what a wrong call is told.

mod device;

use device::{Counts, Named, fill, fill_as, named, noise, own_session, poisoned, session};
use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, DType, Graph, Op, StorageId, TensorType};
use kiln::model::{Gptlite, GptliteConfig, Init, ParamSource, init};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

fn f32(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

/// A GPTlite of one block, its parameters and an input.
fn gptlite() -> (Graph, Named, Tensor) {
    let graph = Gptlite::new(GptliteConfig::new(11, 1, 8, 2, 6)).build(2, 5).unwrap();
    let params = init(&graph.layout, Init::Default, 1).unwrap();
    (graph, params, fill_as(DType::I32, &[2, 5], |i| (i * 3 % 11) as f64))
}

/// total += table[row] · x, y = total.
fn accumulator() -> (Graph, Named) {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[1, 4])).unwrap();
    let row = b.input("row", TensorType::new(DType::I32, [1])).unwrap();
    let total = b.state("total", f32(&[1, 4])).unwrap();
    let table = b.parameter("table", f32(&[3, 4])).unwrap();
    let picked = b.embedding(table, row).unwrap();
    let term = b.mul(picked, x).unwrap();
    let next = b.add(total, term).unwrap();
    b.update(total, next).unwrap();
    b.output("y", next).unwrap();
    (b.finish().unwrap(), named([("table", fill(&[3, 4], |i| (i / 4) as f64))]))
}

#[test]
fn a_run_is_one_encoder_one_pass_one_submit_one_upload() {
    let Some(session) = own_session() else { return };
    let (graph, params, tokens) = gptlite();
    for mode in MODES {
        let program = session.compile(&graph, &params, &CompileOptions::mode(mode)).unwrap();
        let n = program.dispatches() as u64;
        let before = Counts::of(&session);
        let run = program.submit(&[("tokens", &tokens)]).unwrap();
        let submits = if mode == Mode::Eager { n } else { 1 };
        assert_eq!(run.submits(), submits, "{mode}");
        assert!(run.encode_ns() > 0 && run.submit_ns() > 0);
        run.wait().unwrap();
        let expected = Counts { submits, passes: submits, dispatches: n, bind_groups: 0, pipelines: 0, uploads: 1 };
        assert_eq!(Counts::of(&session).since(before), expected, "{mode}");
    }
}

#[test]
fn fewer_dispatches_when_fused_and_switches_take_effect() {
    let Some(session) = session() else { return };
    let (graph, params, tokens) = gptlite();
    let compile = |options| session.compile(&graph, &params, &options).unwrap();
    let dispatches = |options| compile(options).dispatches();
    let written = dispatches(CompileOptions::mode(Mode::Recorded));
    let lifted = dispatches(CompileOptions { fuse: false, ..CompileOptions::default() });
    let fused = dispatches(CompileOptions { lift: false, ..CompileOptions::default() });
    let both = dispatches(CompileOptions::default());
    let neither = dispatches(CompileOptions { lift: false, fuse: false, ..CompileOptions::default() });
    assert_eq!(neither, written);
    assert!(both < lifted && both < fused && lifted < written && fused < written, "{both} {lifted} {fused} {written}");
    assert_eq!(dispatches(CompileOptions::mode(Mode::Eager)), written);
    let program = compile(CompileOptions::default());
    assert_eq!(program.mode(), Mode::Fused);
    let report = program.report().to_string();
    assert!(report.contains("attention: "), "{report}");
    assert!(compile(CompileOptions::mode(Mode::Recorded)).report().findings.is_empty());
    // an own buffer for each takes more, and gives the same
    let apart = compile(CompileOptions { alias: false, ..CompileOptions::default() });
    assert!(apart.plan().total() > program.plan().total());
    let inputs: &[(&str, &Tensor)] = &[("tokens", &tokens)];
    let logits = program.run(inputs).unwrap();
    assert_eq!(apart.run(inputs).unwrap(), logits);
    let checked = compile(CompileOptions { checked: true, ..CompileOptions::default() });
    assert_eq!(checked.run(inputs).unwrap(), logits);
}

#[test]
fn a_thousand_runs_make_no_pipeline_and_no_bind_group() {
    let Some(session) = own_session() else { return };
    let (graph, params) = accumulator();
    let start = Counts::of(&session);
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    let made = Counts::of(&session);
    let kernels = program.compiled().recording.kernels.len() as u64;
    let expected = Counts {
        submits: 0,
        passes: 0,
        dispatches: 0,
        bind_groups: program.dispatches() as u64,
        pipelines: kernels,
        uploads: 0,
    };
    assert_eq!(made.since(start), expected);
    let row = Tensor::i32([1], &[2]);
    let x = fill(&[1, 4], |_| 0.5);
    for _ in 0..999 {
        program.submit_unread(&[("x", &x), ("row", &row)]).unwrap();
    }
    assert_eq!(program.run(&[("row", &row), ("x", &x)]).unwrap()["y"].to_f32(), [1000.0; 4]);
    let n = program.dispatches() as u64;
    let runs =
        Counts { submits: 1000, passes: 1000, dispatches: 1000 * n, bind_groups: 0, pipelines: 0, uploads: 1000 };
    assert_eq!(Counts::of(&session).since(made), runs);
}

#[test]
fn several_runs_in_flight_keep_their_own_results() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    for mode in MODES {
        let program = session.compile(&graph, &params, &poisoned(mode)).unwrap();
        let row = Tensor::i32([1], &[1]);
        let inputs: Vec<Tensor> = (0..20).map(|k| fill(&[1, 4], |i| (k * i) as f64)).collect();
        let submit = |x| program.submit(&[("x", x), ("row", &row)]).unwrap();
        let mut runs: Vec<_> = inputs.iter().map(submit).enumerate().collect();
        // out of order, some by the async way, some never
        while let Some((k, run)) = if runs.len() % 2 == 0 { runs.pop() } else { Some(runs.remove(0)) } {
            let y = match k % 3 {
                0 => run.wait().unwrap(),
                1 => pollster::block_on(run.finish()).unwrap(),
                _ => continue,
            };
            let sum = (k * (k + 1) / 2) as f32;
            assert_eq!(y["y"].to_f32(), [0.0, sum, 2.0 * sum, 3.0 * sum], "{mode}: run {k}");
            if runs.is_empty() {
                break;
            }
        }
    }
}

#[test]
fn an_unread_run_gives_nothing_back_and_can_be_waited_for() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    let (x, row) = (fill(&[1, 4], |_| 1.0), Tensor::i32([1], &[2]));
    let inputs: &[(&str, &Tensor)] = &[("x", &x), ("row", &row)];
    assert!(program.submit_unread(inputs).unwrap().wait().unwrap().is_empty());
    assert!(pollster::block_on(program.submit_unread(inputs).unwrap().finish()).unwrap().is_empty());
    assert_eq!(program.read_state("total").unwrap().to_f32(), [4.0; 4]);
}

#[test]
fn states_are_zero_at_first_and_can_be_written_and_read() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    for mode in MODES {
        let program = session.compile(&graph, &params, &poisoned(mode)).unwrap();
        assert_eq!(program.read_state("total").unwrap(), Tensor::zeros(f32(&[1, 4])));
        let (x, row) = (fill(&[1, 4], |i| i as f64), Tensor::i32([1], &[2]));
        let inputs: &[(&str, &Tensor)] = &[("x", &x), ("row", &row)];
        assert_eq!(program.run(inputs).unwrap()["y"].to_f32(), [0.0, 2.0, 4.0, 6.0], "{mode}");
        program.write_state("total", &fill(&[1, 4], |_| 100.0)).unwrap();
        let in_flight = program.submit(inputs).unwrap();
        // as the last submitted run leaves it
        assert_eq!(program.read_state("total").unwrap().to_f32(), [100.0, 102.0, 104.0, 106.0], "{mode}");
        program.write_state("total", &fill(&[1, 4], |_| 0.0)).unwrap();
        assert_eq!(in_flight.wait().unwrap()["y"].to_f32(), [100.0, 102.0, 104.0, 106.0], "{mode}");
        assert_eq!(program.run(inputs).unwrap()["y"].to_f32(), [0.0, 2.0, 4.0, 6.0], "{mode}");
    }
}

#[test]
fn wrong_inputs_are_told_what_is_wrong() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    let (x, row) = (fill(&[1, 4], |_| 1.0), Tensor::i32([1], &[0]));
    let fails = |inputs: &[(&str, &Tensor)]| program.run(inputs).unwrap_err().to_string();
    assert_eq!(fails(&[("x", &x)]), "input \"row\" is missing; the program's inputs are: x f32 (1, 4), row i32 (1)");
    assert_eq!(
        fails(&[("x", &x), ("row", &row), ("rows", &row)]),
        "input \"rows\" does not exist; the program's inputs are: x f32 (1, 4), row i32 (1)"
    );
    let other = "the program was compiled for f32 (1, 4), got";
    assert_eq!(
        fails(&[("x", &fill(&[4], |_| 1.0)), ("row", &row)]),
        format!("input \"x\": {other} f32 (4); compile one for this shape, or pad")
    );
    assert_eq!(
        fails(&[("x", &fill_as(DType::I32, &[1, 4], |_| 1.0)), ("row", &row)]),
        format!("input \"x\": {other} i32 (1, 4); give f32, since nothing is cast on the way in")
    );
    assert_eq!(
        fails(&[("x", &x), ("row", &row), ("x", &x)]),
        "input \"x\" is given twice; the program's inputs are: x f32 (1, 4), row i32 (1)"
    );
    for bad in [3, -1] {
        assert_eq!(
            fails(&[("x", &x), ("row", &Tensor::i32([1], &[bad]))]),
            format!("input \"row\": element 0 is {bad}, but \"embedding\" takes 0 to 2")
        );
    }
    let error = program.write_state("sum", &x).unwrap_err();
    assert_eq!(error.to_string(), "state \"sum\" does not exist; the program's states are: total f32 (1, 4)");
    let error = program.read_state("sum").unwrap_err();
    assert_eq!(error.to_string(), "state \"sum\" does not exist; the program's states are: total f32 (1, 4)");
    let error = program.write_state("total", &row).unwrap_err();
    assert_eq!(
        error.to_string(),
        "state \"total\": the program was compiled for f32 (1, 4), got i32 (1); give f32, since nothing is cast on the way in, and \
         compile one for this shape, or pad"
    );
    assert!(program.run(&[("x", &x), ("row", &row)]).is_ok(), "a refused call changes nothing");
    assert_eq!(program.read_state("total").unwrap().to_f32(), [0.0; 4]);
}

#[test]
fn an_index_into_a_table_without_rows_is_refused() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let i = b.input("i", TensorType::new(DType::I32, [2])).unwrap();
    let x = b.input("x", f32(&[2, 3])).unwrap();
    let none = b.slice(x, 0, 0, 0).unwrap();
    let y = b.embedding(none, i).unwrap();
    b.output("y", y).unwrap();
    let error = session.compile(&b.finish().unwrap(), &Named::new(), &CompileOptions::default()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "embedding \"embedding\": gather: rows of the table is 0, expected at least 1, since rows of it are wanted"
    );
}

#[test]
fn parameters_that_are_missing_or_of_another_type() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    let compile =
        |params: &Named| session.compile(&graph, params, &CompileOptions::default()).err().unwrap().to_string();
    assert_eq!(
        compile(&Named::new()),
        "parameter \"table\" (f32 (3, 4)) is not given; load a checkpoint that has it or initialise it"
    );
    let misspelt = |n: usize| -> Named { (0..n).map(|i| (format!("tabel.{i}"), fill(&[3, 4], |_| 1.0))).collect() };
    let missing = "parameter \"table\" (f32 (3, 4)) is not given; load a checkpoint that has it or initialise it; \
                   given but not in the graph: \"tabel.0\"";
    assert_eq!(compile(&misspelt(1)), missing);
    let others = (1..8).map(|i| format!(", \"tabel.{i}\"")).collect::<String>();
    assert_eq!(compile(&misspelt(8)), format!("{missing}{others}"));
    assert_eq!(compile(&misspelt(10)), format!("{missing}{others} and 2 more"));
    let table = |dtype, shape: &[usize]| named([("table", fill_as(dtype, shape, |_| 1.0))]);
    for (dtype, shape, rest) in [
        (DType::F32, &[4, 3][..], "f32 (4, 3); transpose it: a linear's weight is (out, in), as in PyTorch"),
        (DType::F32, &[3, 5], "f32 (3, 5); give one of that shape, or build the graph for this one"),
        (DType::I32, &[12], "i32 (12); give one of that shape, or build the graph for this one"),
        (DType::I32, &[3, 4], "i32 (3, 4); give f32, f16 or bf16: only floats are cast"),
        (DType::U32, &[3, 4], "u32 (3, 4); give f32, f16 or bf16: only floats are cast"),
        (DType::Bool, &[3, 4], "bool (3, 4); give f32, f16 or bf16: only floats are cast"),
    ] {
        assert_eq!(compile(&table(dtype, shape)), format!("parameter \"table\": expected f32 (3, 4), got {rest}"));
    }
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    assert_eq!(
        program.write_parameters(&table(DType::I32, &[3, 4])).unwrap_err().to_string(),
        "parameter \"table\": expected f32 (3, 4), got i32 (3, 4); give f32, f16 or bf16: only floats are cast"
    );
    // an integer parameter takes its own type alone
    let mut b = Builder::new();
    let order = b.parameter("order", TensorType::new(DType::I32, [2])).unwrap();
    let two = b.constant(2.0, TensorType::new(DType::I32, [2])).unwrap();
    let y = b.mul(order, two).unwrap();
    b.output("y", y).unwrap();
    let doubled = b.finish().unwrap();
    let compile = |params: &Named| session.compile(&doubled, params, &CompileOptions::default());
    assert_eq!(
        compile(&named([("order", fill(&[2], |_| 1.0))])).err().unwrap().to_string(),
        "parameter \"order\": expected i32 (2), got f32 (2); give i32: only floats are cast"
    );
    let given = named([("order", Tensor::i32([2], &[3, -4]))]);
    assert_eq!(compile(&given).unwrap().run(&[]).unwrap()["y"], Tensor::i32([2], &[6, -8]));
}

#[test]
fn a_parameter_is_one_node_however_often_it_is_asked_for() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3])).unwrap();
    let w = b.parameter("w", f32(&[3, 3])).unwrap();
    let again = b.op(Op::Parameter(StorageId(0)), &[]).unwrap();
    assert_eq!(again, w);
    let (y, z) = (b.linear(x, w, None).unwrap(), b.matmul(x, again).unwrap());
    b.output("y", y).unwrap();
    b.output("z", z).unwrap();
    let graph = b.finish().unwrap();
    let params = named([("w", fill(&[3, 3], |i| noise(1, i)))]);
    let inputs = named([("x", fill(&[2, 3], |i| noise(2, i)))]);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    for mode in MODES {
        let outputs = device::run(session, &graph, &params, &inputs, &poisoned(mode));
        device::assert_close(&mode.to_string(), &outputs, &expected, 1e-6);
    }
}

/// Counts how often each parameter's values are asked for.
struct Counted<'a>(&'a Named, Mutex<BTreeMap<String, usize>>);

impl ParamSource for Counted<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        *self.1.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        self.0.get(name).map(Cow::Borrowed)
    }

    fn ty(&self, name: &str) -> Option<TensorType> {
        self.0.get(name).map(|tensor| tensor.ty().clone())
    }
}

#[test]
fn parameters_that_are_written_are_asked_for_once() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    let program = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    let counted = Counted(&params, Mutex::default());
    program.write_parameters(&counted).unwrap();
    assert_eq!(counted.1.into_inner().unwrap(), BTreeMap::from([("table".to_owned(), 1)]));
}

#[test]
fn parameters_of_another_float_type_are_converted() {
    let Some(session) = session() else { return };
    let (graph, params) = accumulator();
    let half = named([("table", params["table"].cast(DType::F16))]);
    let program = session.compile(&graph, &half, &CompileOptions::default()).unwrap();
    let (x, row) = (fill(&[1, 4], |i| i as f64), Tensor::i32([1], &[2]));
    assert_eq!(program.run(&[("x", &x), ("row", &row)]).unwrap()["y"].to_f32(), [0.0, 2.0, 4.0, 6.0]);
}

#[test]
fn f16_on_a_device_without_it_is_refused_by_name() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[4])).unwrap();
    let half = b.scope("narrow", |b| b.cast(x, DType::F16)).unwrap();
    b.output("half", half).unwrap();
    let graph = b.finish().unwrap();
    let limits = DeviceCaps { f16: false, ..session.caps().clone() };
    let options = CompileOptions { limits: Some(limits), ..CompileOptions::default() };
    assert_eq!(
        session.compile(&graph, &Named::new(), &options).err().unwrap().to_string(),
        "cast \"narrow.cast\": f16, but this adapter has no f16 shaders; build the model in f32 or use another adapter"
    );
}

#[test]
fn bf16_is_refused_by_name() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::BF16, [4])).unwrap();
    b.output("y", x).unwrap();
    let error = kiln::session::compile(&b.finish().unwrap(), &DeviceCaps::PORTABLE, &CompileOptions::default());
    assert_eq!(
        error.err().unwrap().to_string(),
        "input \"x\": bf16, which no device computes with; build the model in f32 or f16, to which a checkpoint's bf16 is \
         converted when it is loaded"
    );
}

#[test]
fn limits_can_be_tightened_and_not_widened() {
    let Some(session) = session() else { return };
    let (graph, params, tokens) = gptlite();
    let caps = session.caps();
    let limits = DeviceCaps {
        max_binding_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        max_storage_buffers: 1000,
        max_groups: u32::MAX,
        workgroup_bytes: u32::MAX,
        max_invocations: u32::MAX,
        storage_align: 1,
        uniform_align: 1,
        ..caps.clone()
    };
    let options = CompileOptions { limits: Some(limits), ..CompileOptions::default() };
    let program = session.compile(&graph, &params, &options).unwrap();
    let plain = session.compile(&graph, &params, &CompileOptions::default()).unwrap();
    assert_eq!(program.compiled().recording, plain.compiled().recording);
    assert_eq!(program.run(&[("tokens", &tokens)]).unwrap(), plain.run(&[("tokens", &tokens)]).unwrap());
}

#[test]
fn limits_of_nothing_are_refused_without_a_panic() {
    let (graph, ..) = gptlite();
    let none = DeviceCaps {
        max_binding_bytes: 0,
        max_buffer_bytes: 0,
        max_storage_buffers: 0,
        max_groups: 0,
        workgroup_bytes: 0,
        max_invocations: 0,
        storage_align: 0,
        uniform_align: 0,
        ..DeviceCaps::PORTABLE
    };
    let portable = DeviceCaps::PORTABLE;
    let each = [
        none.clone(),
        DeviceCaps { max_binding_bytes: 0, ..portable.clone() },
        DeviceCaps { max_buffer_bytes: 0, ..portable.clone() },
        DeviceCaps { max_storage_buffers: 0, ..portable.clone() },
        DeviceCaps { max_groups: 0, ..portable.clone() },
        DeviceCaps { workgroup_bytes: 0, max_invocations: 0, ..portable.clone() },
    ];
    for caps in &each {
        for mode in MODES {
            assert!(kiln::session::compile(&graph, caps, &CompileOptions::mode(mode)).is_err(), "{caps:?}");
        }
    }
    for align in [0, 1, 3, 257, u64::MAX] {
        let caps = DeviceCaps { storage_align: align, uniform_align: align, ..portable.clone() };
        assert!(kiln::session::compile(&graph, &caps, &CompileOptions::default()).is_ok());
    }
}

#[test]
fn parameters_in_immediates_give_the_same_numbers() {
    let Some(session) = session() else { return };
    let (graph, params, tokens) = gptlite();
    for mode in MODES {
        let run = |immediates: bool| {
            let options = CompileOptions { immediates, ..poisoned(mode) };
            let program = session.compile(&graph, &params, &options).unwrap();
            (program.compiled().recording.immediates.len(), program.run(&[("tokens", &tokens)]).unwrap())
        };
        let ((without, expected), (with, got)) = (run(false), run(true));
        assert_eq!((without, with > 0), (0, session.caps().immediate_bytes > 0), "{mode}");
        assert_eq!(got, expected, "{mode}");
    }
}

#[test]
fn times_of_a_trace_are_there_or_none() {
    let Some(session) = session() else { return };
    let (graph, params, tokens) = gptlite();
    for mode in MODES {
        let program = session.compile(&graph, &params, &poisoned(mode)).unwrap();
        let (outputs, trace) = program.trace(&[("tokens", &tokens)]).unwrap();
        assert_eq!(outputs, program.run(&[("tokens", &tokens)]).unwrap());
        let recording = &program.compiled().recording;
        assert_eq!(trace.dispatches.len(), recording.dispatches.len());
        let frame = &trace.frames[0];
        for ((traced, dispatch), time) in trace.dispatches.iter().zip(&recording.dispatches).zip(&frame.times) {
            assert_eq!((&traced.name, traced.grid), (&dispatch.name, dispatch.grid));
            assert_eq!(trace.kernel_of(traced), recording.kernels[dispatch.kernel].name());
            assert_eq!(time.is_some(), session.caps().timestamps, "{mode}: {traced:?}");
        }
        assert_eq!(frame.gpu_ns().is_some(), session.caps().timestamps);
        assert!(frame.busy_ns() <= frame.gpu_ns());
        assert!(frame.wall_ns >= frame.encode_ns);
    }
}

#[test]
fn a_graph_without_inputs_or_states() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.arange(5).unwrap();
    let x = b.cast(x, DType::F32).unwrap();
    let c = b.constant(0.5, f32(&[5])).unwrap();
    let y = b.mul(x, c).unwrap();
    b.output("y", y).unwrap();
    b.output("again", y).unwrap();
    let graph = b.finish().unwrap();
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
        let out = program.run(&[]).unwrap();
        assert_eq!((out["y"].to_f32(), &out["y"]), (vec![0.0, 0.5, 1.0, 1.5, 2.0], &out["again"]), "{mode}");
    }
}

#[test]
fn many_large_inputs_in_one_upload() {
    let Some(session) = own_session() else { return };
    let mut b = Builder::new();
    let mut inputs = Named::new();
    for i in 0..40 {
        let name = format!("x{i}");
        let x = b.input(&name, f32(&[1 + 997 * i])).unwrap();
        let y = b.scale(x, 2.0).unwrap();
        b.output(&name, y).unwrap();
        inputs.insert(name, fill(&[1 + 997 * i], |k| noise(i as u64, k)));
    }
    let program = session.compile(&b.finish().unwrap(), &Named::new(), &poisoned(Mode::Fused)).unwrap();
    let before = Counts::of(&session);
    let out = program.run(&device::refs(&inputs)).unwrap();
    assert_eq!(Counts::of(&session).since(before).uploads, 1);
    for (name, x) in &inputs {
        assert!(out[name].to_f32().iter().zip(x.to_f32()).all(|(y, x)| *y == 2.0 * x), "{name}");
    }
}
