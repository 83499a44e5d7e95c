//! Limits, memory and loss of a device: the D rows of the public bug reports that kiln's tests are
//! numbered by.

mod device;

use device::{Counts, Named, assert_close, fill, fill_as, named, noise, own_session, poisoned, refs, session};
use kiln::Error;
use kiln::caps::DeviceCaps;
use kiln::gpu::{AdapterChoice, GpuError, adapters};
use kiln::graph::{Builder, DType, Graph, TensorType, Unary};
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig};
use kiln::reference::evaluate;
use kiln::select::SelectError;
use kiln::session::{CompileOptions, Mode, Session, compile};
use kiln::tensor::Tensor;

fn f32(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

/// y = relu(x).
fn relu(dims: &[usize]) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", f32(dims)).unwrap();
    let y = b.relu(x).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

/// n dispatches as written, each reading the one before.
fn chain(n: usize) -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", f32(&[64])).unwrap();
    for i in 0..n {
        x = b.unary(if i % 2 == 0 { Unary::Tanh } else { Unary::Neg }, x).unwrap();
    }
    b.output("y", x).unwrap();
    b.finish().unwrap()
}

/// What a graph fails to compile with.
fn refusal(graph: &Graph, caps: &DeviceCaps) -> String {
    match compile(graph, caps, &CompileOptions::default()) {
        Err(error) => error.to_string(),
        Ok(compiled) => panic!("compiles:\n{}", compiled.recording),
    }
}

/// Rows of a table: y = table[tokens].
fn embedding(rows: usize, width: usize, tokens: usize) -> Graph {
    let mut b = Builder::new();
    let t = b.input("tokens", TensorType::new(DType::I32, [tokens])).unwrap();
    let table = b.parameter("wte", f32(&[rows, width])).unwrap();
    let y = b.embedding(table, t).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

#[test]
fn d01_a_tensor_over_the_largest_buffer_names_bytes_and_limit() {
    assert_eq!(
        refusal(&relu(&[160_000_000]), &DeviceCaps::PORTABLE),
        "input \"x\": tensor of 640000000 bytes, but this device's largest buffer is 268435456 bytes; use a smaller \
         size or another adapter"
    );
    let Some(session) = session() else { return };
    // limits are the adapter's own, not a default
    let caps = session.caps();
    assert!(caps.max_buffer_bytes >= DeviceCaps::PORTABLE.max_buffer_bytes);
    let elements = caps.max_buffer_bytes as usize / 4 + 64;
    let error = session.compile(&relu(&[elements]), &Named::new(), &CompileOptions::default()).err().unwrap();
    assert!(
        matches!(error, Error::Select(SelectError::Buffer { limit, .. }) if limit == caps.max_buffer_bytes),
        "{error}"
    );
}

#[test]
fn d02_a_table_over_the_binding_limit_is_split() {
    // GPT-2's table and a larger one, without a device
    for (rows, width) in [(49_408, 768), (50_257, 768), (128_000, 1024)] {
        let compiled = compile(
            &embedding(rows, width, 5),
            &DeviceCaps { max_buffer_bytes: 1 << 30, ..DeviceCaps::PORTABLE },
            &CompileOptions::default(),
        )
        .unwrap();
        assert!(compiled.recording.dispatches.len() >= 2);
        let mut bindings = compiled.recording.dispatches.iter().flat_map(|d| &d.bindings);
        assert!(bindings.all(|b| b.bytes <= 128 << 20), "{}", compiled.recording);
    }
    let Some(session) = session() else { return };
    // the same kind a thousand times smaller
    let (graph, params) = (embedding(503, 77, 9), named([("wte", fill(&[503, 77], |i| i as f64))]));
    let inputs = named([("tokens", Tensor::i32([9], &[0, 502, 251, 400, 1, 100, 435, 436, 437]))]);
    let limits = DeviceCaps { max_binding_bytes: 128 << 10, ..session.caps().clone() };
    for mode in MODES {
        let options = CompileOptions { limits: Some(limits.clone()), ..poisoned(mode) };
        let program = session.compile(&graph, &params, &options).unwrap();
        assert!(program.dispatches() >= 2);
        assert_close("split", &program.run(&refs(&inputs)).unwrap(), &evaluate(&graph, &params, &inputs).unwrap(), 0.0);
    }
}

#[test]
fn d02_a_linear_over_the_binding_limit_is_split() {
    let Some(session) = session() else { return };
    let (rows, width) = (503, 96);
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3, width])).unwrap();
    let w = b.parameter("w", f32(&[rows, width])).unwrap();
    let y = b.linear(x, w, None).unwrap();
    let y = b.relu(y).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let params = named([("w", fill(&[rows, width], |i| noise(1, i)))]);
    let inputs = named([("x", fill(&[3, width], |i| noise(2, i)))]);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    for mode in MODES {
        for cpu in [true, false] {
            let limits = DeviceCaps { max_binding_bytes: 64 << 10, cpu, ..session.caps().clone() };
            let options = CompileOptions { limits: Some(limits), ..poisoned(mode) };
            let program = session.compile(&graph, &params, &options).unwrap();
            let recording = &program.compiled().recording;
            assert!(recording.dispatches.iter().flat_map(|d| &d.bindings).all(|b| b.bytes <= 64 << 10), "{recording}");
            assert_close("split", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
        }
    }
}

#[test]
fn d03_a_binding_is_within_the_largest_buffer_too() {
    let Some(session) = session() else { return };
    let caps = session.caps();
    assert!(caps.max_binding_bytes <= caps.max_buffer_bytes, "{caps:?}");
}

#[test]
fn d04_two_gibibytes_are_refused_or_planned_whole() {
    let caps = DeviceCaps { max_buffer_bytes: 4 << 30, ..DeviceCaps::PORTABLE };
    let compiled = compile(&relu(&[1 << 29]), &caps, &CompileOptions::default()).unwrap();
    // every element is in one of the dispatches, within the limits of each
    let recording = &compiled.recording;
    let covered: u64 = recording.dispatches.iter().map(|d| d.bindings.last().unwrap().bytes).sum();
    assert_eq!(covered, 2 << 30);
    assert!(recording.dispatches.iter().flat_map(|d| &d.bindings).all(|b| b.bytes <= 128 << 20));
    assert!(recording.dispatches.iter().all(|d| d.grid.iter().all(|g| *g <= 65_535)));
    println!("skipped: 2 GiB are not run");
}

#[test]
fn d05_four_gibibytes_and_more_are_refused() {
    for elements in [1 << 30, (1 << 30) + 1, 1 << 40, usize::MAX] {
        let error =
            refusal(&relu(&[elements]), &DeviceCaps { max_buffer_bytes: (4 << 30) - 4, ..DeviceCaps::PORTABLE });
        assert!(error.contains("largest buffer is 4294967292 bytes"), "{error}");
    }
}

#[test]
fn d07_200_million_elements_are_folded_into_a_grid() {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[768, 1024, 256])).unwrap();
    let y = b.permute(x, &[1, 0, 2]).unwrap();
    b.output("y", y).unwrap();
    let caps = DeviceCaps { max_binding_bytes: 1 << 30, max_buffer_bytes: 1 << 30, ..DeviceCaps::PORTABLE };
    let compiled = compile(&b.finish().unwrap(), &caps, &CompileOptions::default()).unwrap();
    let grid = compiled.recording.dispatches[0].grid;
    assert!(grid.iter().all(|g| *g <= 65_535) && grid[1] > 1, "{grid:?}");
    println!("skipped: 768 MiB are not run");
}

#[test]
fn d08_grids_wider_than_the_device_are_folded_or_refused() {
    let Some(session) = session() else { return };
    let x = fill(&[81_920, 4], |i| (i % 251) as f64 - 100.0);
    let graph = relu(&[81_920, 4]);
    for (max_groups, dimensions) in [(65_535, 1), (100, 2), (12, 3)] {
        let limits = DeviceCaps { max_groups, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
        let program = session.compile(&graph, &Named::new(), &options).unwrap();
        let grid = program.compiled().recording.dispatches[0].grid;
        assert!(grid.iter().all(|g| *g <= max_groups), "{grid:?}");
        assert_eq!(grid.iter().filter(|g| **g > 1).count(), dimensions, "{grid:?}");
        let y = program.run(&[("x", &x)]).unwrap()["y"].to_f32();
        assert!(y.iter().zip(x.to_f32()).all(|(y, x)| *y == x.max(0.0)));
    }
    let error = refusal(&graph, &DeviceCaps { max_groups: 7, ..DeviceCaps::PORTABLE });
    let start = "relu \"relu\": takes ";
    let end =
        " workgroups, but this device allows 7 along each of three dimensions; use a smaller size or another adapter";
    assert!(error.starts_with(start) && error.ends_with(end), "{error}");
}

#[test]
fn d08_a_softmax_of_81920_rows() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[81_920, 3])).unwrap();
    let y = b.softmax(x, 1).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let inputs = named([("x", fill(&[81_920, 3], |i| noise(1, i)))]);
    let expected = evaluate(&graph, &Named::new(), &inputs).unwrap();
    let y = device::run(session, &graph, &Named::new(), &inputs, &device::tiled(session, poisoned(Mode::Fused)));
    assert_close("rows", &y, &expected, 1e-6);
}

#[test]
fn d10_a_buffer_that_cannot_be_made_is_an_error_and_the_session_goes_on() {
    let Some(session) = own_session() else { return };
    let mut b = Builder::new();
    let most = session.caps().max_buffer_bytes;
    let s = b.state("s", f32(&[(most / 4) as usize + 1024])).unwrap();
    let next = b.scale(s, 0.5).unwrap();
    b.update(s, next).unwrap();
    let error = session.compile(&b.finish().unwrap(), &Named::new(), &CompileOptions::default()).err().unwrap();
    match &error {
        Error::Select(SelectError::Buffer { limit, .. }) => assert_eq!(*limit, most),
        Error::Gpu(GpuError::OutOfMemory { .. } | GpuError::Limit { .. }) => {}
        _ => panic!("{error}"),
    }
    let program = session.compile(&relu(&[3]), &Named::new(), &CompileOptions::default()).unwrap();
    assert_eq!(program.run(&[("x", &fill(&[3], |i| i as f64 - 1.0))]).unwrap()["y"].to_f32(), [0.0, 0.0, 1.0]);
    let words = GpuError::OutOfMemory { buffer: "wte".into(), bytes: 154_389_504, total: 500_000_000 }.to_string();
    assert_eq!(
        words,
        "out of device memory: buffer \"wte\" of 154389504 bytes (the program takes 500000000 in all); use a smaller \
         size or free other programs"
    );
    let limit =
        |runs| GpuError::Limit { buffer: "rows of inputs".into(), bytes: 536_870_912, limit: 268_435_456, runs };
    let words = "buffer \"rows of inputs\" of 536870912 bytes, but this device's largest buffer is 268435456 bytes;";
    assert_eq!(limit(1).to_string(), format!("{words} use a smaller size or another adapter"));
    let fewer = "submit fewer runs at once, or use a smaller size or another adapter";
    assert_eq!(limit(64).to_string(), format!("{words} {fewer}"));
    // inputs of so many runs that no buffer holds them
    let x = fill(&[16 << 20], |_| 0.0);
    let mut b = Builder::new();
    let given = b.input("x", f32(&[16 << 20])).unwrap();
    let sum = b.sum(given, &[0]).unwrap();
    b.output("sum", sum).unwrap();
    let program = session.compile(&b.finish().unwrap(), &Named::new(), &CompileOptions::default()).unwrap();
    let runs = (most >> 26) as usize + 1;
    let error = program.submit_all(&vec![[("x", &x)]; runs]).err().unwrap();
    assert!(matches!(&error, Error::Gpu(GpuError::Limit { runs: of, .. }) if *of == runs), "{error}");
    assert!(error.to_string().ends_with(fewer), "{error}");
    assert_eq!(program.run(&[("x", &x)]).unwrap()["sum"].to_f32(), [0.0]);
}

#[test]
fn d11_after_a_loss_every_call_says_so() {
    let Some(session) = own_session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3])).unwrap();
    let s = b.state("s", f32(&[3])).unwrap();
    let y = b.add(x, s).unwrap();
    b.update(s, y).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let program = session.compile(&graph, &Named::new(), &CompileOptions::default()).unwrap();
    let x = fill(&[3], |i| i as f64);
    let inputs: &[(&str, &Tensor)] = &[("x", &x)];
    program.run(inputs).unwrap();
    let (waited, awaited) = (program.submit(inputs).unwrap(), program.submit(inputs).unwrap());
    let dropped = program.submit_unread(inputs).unwrap();
    let uploaded = session.upload(&x).unwrap();
    session.gpu().destroy();
    let errors = [
        waited.wait().err(),
        pollster::block_on(awaited.finish()).err(),
        program.run(inputs).err(),
        program.submit(inputs).err(),
        program.submit_unread(inputs).err(),
        program.trace(inputs).err(),
        program.write_state("s", &x).err(),
        program.read_state("s").err(),
        program.copy_state("s", &uploaded).err(),
        uploaded.read().err(),
        session.upload(&x).err(),
        session.compile(&graph, &Named::new(), &CompileOptions::default()).err(),
        kiln::measure::peak(&session).err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {i} succeeds"));
        assert!(matches!(error, Error::Gpu(GpuError::Lost { .. })), "call {i}: {error}");
        assert_eq!(error.to_string(), "device lost: the device was destroyed; open a new session", "call {i}");
    }
    drop(dropped);
    drop(program);
    let again = own_session().unwrap();
    assert!(again.compile(&graph, &Named::new(), &CompileOptions::default()).unwrap().run(inputs).is_ok());
}

#[test]
fn d13_a_run_is_split_after_so_many_dispatches() {
    let Some(session) = own_session() else { return };
    let (graph, x) = (chain(25), fill(&[64], |i| noise(1, i)));
    let whole = session.compile(&graph, &Named::new(), &poisoned(Mode::Recorded)).unwrap().run(&[("x", &x)]).unwrap();
    for (most, submits) in [(None, 1), (Some(100), 1), (Some(25), 1), (Some(24), 2), (Some(10), 3), (Some(1), 25)] {
        let options = CompileOptions { max_dispatches_per_submit: most, ..poisoned(Mode::Recorded) };
        let program = session.compile(&graph, &Named::new(), &options).unwrap();
        let before = Counts::of(&session);
        let run = program.submit(&[("x", &x)]).unwrap();
        assert_eq!(run.submits(), submits, "{most:?}");
        assert_eq!(run.wait().unwrap(), whole, "{most:?}");
        let done = Counts::of(&session).since(before);
        assert_eq!((done.submits, done.passes, done.dispatches, done.uploads), (submits, submits, 25, 1), "{most:?}");
        let (out, trace) = program.trace(&[("x", &x)]).unwrap();
        assert_eq!((&out, trace.frames[0].submits), (&whole, submits));
    }
    let none = CompileOptions { max_dispatches_per_submit: Some(0), ..CompileOptions::default() };
    assert_eq!(
        session.compile(&graph, &Named::new(), &none).err().unwrap().to_string(),
        "max_dispatches_per_submit is 0, expected at least 1, or None for one submit of all"
    );
}

#[test]
fn d14_workgroups_stay_within_memory_and_invocations_or_are_refused() {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[100, 70])).unwrap();
    let w = b.parameter("w", f32(&[90, 70])).unwrap();
    let y = b.linear(x, w, None).unwrap();
    let y = b.softmax(y, 1).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let mut refused = 0;
    for bytes in [0, 1, 256, 1024, 2048, 4096, 8192, 16 << 10, 64 << 10] {
        for invocations in [1, 16, 32, 64, 128, 256] {
            let caps = DeviceCaps { workgroup_bytes: bytes, max_invocations: invocations, ..DeviceCaps::PORTABLE };
            match compile(&graph, &caps, &CompileOptions::default()) {
                Ok(compiled) => {
                    for key in compiled.recording.kernels.iter().map(|k| &k.key) {
                        assert!(key.workgroup_bytes() <= bytes as usize && key.workgroup_size() <= invocations);
                    }
                }
                Err(error) => {
                    assert!(error.to_string().contains("a workgroup takes"), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!((1..54).contains(&refused), "{refused} of 54 refused");
    assert_eq!(
        refusal(&graph, &DeviceCaps { max_invocations: 8, ..DeviceCaps::PORTABLE }),
        "linear \"w\": matmul: a workgroup takes 16 invocations, but the device's limit is 8; use another adapter"
    );
}

#[test]
fn d15_no_adapter_of_a_name_lists_what_there_is() {
    let found = pollster::block_on(adapters());
    let error = Session::open_blocking(&AdapterChoice::Named("no such card".into())).err().unwrap();
    let list = if found.is_empty() {
        "none was found over Vulkan, Metal or DX12: install a driver (on Debian and Ubuntu, mesa-vulkan-drivers and \
         libvulkan1 run on any CPU)"
            .to_owned()
    } else {
        let names: Vec<String> = found.iter().map(|a| a.to_string()).collect();
        format!("found: {}", names.join("; "))
    };
    assert_eq!(error.to_string(), format!("no adapter whose name contains \"no such card\"; {list}"));
    for adapter in &found {
        let line = adapter.to_string();
        assert!([&adapter.name, &adapter.kind, &adapter.backend].iter().all(|part| line.contains(*part)), "{line}");
        // any part of its name will do, whatever its case
        let choice = AdapterChoice::Named(adapter.name.to_uppercase());
        let session = Session::open_blocking(&choice).unwrap();
        assert_eq!(session.adapter().name, adapter.name);
        assert_eq!(session.caps().cpu, session.adapter().kind == "CPU");
    }
}

#[test]
fn d16_no_dispatch_binds_more_than_eight_storage_buffers() {
    let gptlite = Gptlite::new(GptliteConfig::new(65, 2, 64, 4, 64)).build(2, 48).unwrap();
    let dnn = Dnn::new(DnnConfig { in_size: 48, width: 64, depth: 12, out_size: 32 }).build(33).unwrap();
    for graph in [&gptlite, &dnn] {
        for mode in MODES {
            // a device that has more is not used differently
            for limit in [8, 64] {
                let caps = DeviceCaps { max_storage_buffers: limit, ..DeviceCaps::PORTABLE };
                let compiled = compile(graph, &caps, &CompileOptions::mode(mode)).unwrap();
                let most = compiled.recording.dispatches.iter().map(|d| d.bindings.len()).max();
                assert!(most <= Some(limit as usize), "{mode}: {most:?}");
            }
        }
    }
    let Some(session) = session() else { return };
    assert!(session.caps().max_storage_buffers <= 8);
    let error = refusal(&gptlite, &DeviceCaps { max_storage_buffers: 2, ..DeviceCaps::PORTABLE });
    assert!(
        error.ends_with("but this device allows 2 a dispatch; switch fusion off or use another adapter"),
        "{error}"
    );
}

#[test]
fn d17_memory_is_planned_and_what_is_allocated_is_no_more() {
    let Some(session) = own_session() else { return };
    let graph = Dnn::new(DnnConfig { in_size: 256, width: 512, depth: 6, out_size: 128 }).build(512).unwrap();
    let params = kiln::model::init(&graph.layout, kiln::model::Init::He, 1).unwrap();
    let x = fill(&[512, 256], |i| noise(1, i));
    for mode in MODES {
        let before = session.gpu().allocated_bytes();
        let program = session.compile(&graph, &params, &CompileOptions::mode(mode)).unwrap();
        program.run(&[("input", &x)]).unwrap();
        program.run(&[("input", &x)]).unwrap();
        let (plan, recording) = (program.plan(), &program.compiled().recording);
        assert!(plan.total() < plan.naive, "{plan}");
        let words = plan.to_string();
        assert!(words.starts_with("planned ") && words.contains("each tensor on its own"), "{words}");
        let Some((before, after)) = before.zip(session.gpu().allocated_bytes()) else {
            println!("skipped: this backend does not say what is allocated");
            return;
        };
        // parameters, results' and inputs' staging, each buffer's padding
        let pool = recording.uniforms.len() as u64 * 4
            + 2 * (512 * 128 + 512 * 256) * 4
            + 4096 * recording.buffers.len() as u64;
        let measured = after - before;
        println!("{mode}: {plan}; measured {measured} bytes");
        assert!(measured <= plan.total() + pool, "{mode}: {measured} bytes, planned {} + {pool}", plan.total());
        drop(program);
    }
}

#[test]
fn d18_an_adapter_without_f16_subgroups_or_timestamps() {
    let graph = |dtype| {
        Dnn::new(DnnConfig { in_size: 8, width: 16, depth: 3, out_size: 4 }).with_dtype(dtype).build(5).unwrap()
    };
    assert_eq!(
        refusal(&graph(DType::F16), &DeviceCaps::PORTABLE),
        "input \"input\": f16, but this adapter has no f16 shaders; build the model in f32 or use another adapter"
    );
    let Some(session) = session() else { return };
    let limits = DeviceCaps { f16: false, subgroup: None, timestamps: false, ..session.caps().clone() };
    let graph = graph(DType::F32);
    let params = kiln::model::init(&graph.layout, kiln::model::Init::He, 1).unwrap();
    let inputs = named([("input", fill(&[5, 8], |i| noise(1, i)))]);
    let options = CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
    let program = session.compile(&graph, &params, &options).unwrap();
    assert!(program.compiled().recording.kernels.iter().all(|k| !k.source().contains("enable")));
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    assert_close("f32", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
}

#[test]
fn index_inputs_are_checked_before_a_run() {
    let Some(session) = session() else { return };
    let params = named([("wte", fill_as(DType::F32, &[7, 2], |i| i as f64))]);
    let program = session.compile(&embedding(7, 2, 3), &params, &CompileOptions::default()).unwrap();
    for bad in [7, -1, i32::MIN, i32::MAX] {
        let error = program.run(&[("tokens", &Tensor::i32([3], &[0, 6, bad]))]).unwrap_err();
        assert_eq!(error.to_string(), format!("input \"tokens\": element 2 is {bad}, but \"embedding\" takes 0 to 6"));
    }
    assert_eq!(
        program.run(&[("tokens", &Tensor::i32([3], &[6, 0, 1]))]).unwrap()["y"].to_f32(),
        [12.0, 13.0, 0.0, 1.0, 2.0, 3.0]
    );
}
