//! The seed's models: PyTorch's ten steps, dropout, groups within packed weights, gradients in pieces, checkpoints.

use super::device::{Counts, assert_numbers, on_units, own_session, poisoned, refs, session, tiled};
use super::trained::{GOLDENS, Golden, Named, OnReference, distance, golden_options};
use super::{assert_parameters, batch, bytes, network, options, params, trainer};
use kiln::caps::DeviceCaps;
use kiln::grad::Checkpoint;
use kiln::graph::TensorType;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Init, Loss, init};
use kiln::select::SelectError;
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;
use kiln::train::{Group, LossScaling, Names, Optimiser, Precision, Schedule, TrainOptions};
use kiln::{Error, MatmulPrecision};

#[test]
fn ten_steps_in_one_submit_are_pytorchs() {
    let Some(session) = own_session() else { return };
    for name in GOLDENS {
        for (loss, mode) in
            [(Loss::CrossEntropy, Mode::Recorded), (Loss::CrossEntropy, Mode::Fused), (Loss::Seed, Mode::Fused)]
        {
            let golden = Golden::open(name, loss);
            let compile = CompileOptions { poison: true, ..CompileOptions::mode(mode) };
            let trainer = session.trainer(&golden.forward, &golden.params, &golden_options(), &compile).unwrap();
            let before = Counts::of(&session);
            let reports = trainer.run_steps(&vec![refs(&golden.batch); 10]).unwrap();
            let did = Counts::of(&session).since(before);
            assert_eq!((did.submits, did.passes, did.uploads), (1, 10, 1));
            for (report, expected) in reports.iter().zip(&golden.losses) {
                let off = (f64::from(report.loss) - expected).abs() / expected;
                assert!(off <= 1e-6, "{name}, {loss}, {mode}, step {}: {} off by {off:.1e}", report.step, report.loss);
            }
            if loss == Loss::CrossEntropy {
                let parameters = trainer.parameters().unwrap();
                let (off, parameter) = golden.furthest(|name| parameters[name].to_f64());
                println!("{name}, {mode}: {parameter} is off by {off:.1e} of its way");
                assert!(off <= 1e-3, "{name}, {mode}: {parameter} is off by {off:.1e} of its way");
            }
        }
    }
}

fn tokens(dims: &[usize], seed: usize) -> Tensor {
    let count = dims.iter().product();
    let values: Vec<i32> = (0..count).map(|i: usize| ((i * 37 + seed * 11) % 23) as i32).collect();
    Tensor::i32(dims, &values)
}

#[test]
fn dropout_drops_the_same_elements_fused_written_and_on_the_reference() {
    let Some(session) = session() else { return };
    let model = Gptlite::new(GptliteConfig::new(23, 2, 24, 3, 16).with_dropout(0.3));
    let forward = model.build_training(2, 13, Loss::CrossEntropy).unwrap();
    let params = init(&forward.layout, Init::Default, 1).unwrap();
    for micro_batches in [1, 2] {
        let lead = if micro_batches == 1 { vec![] } else { vec![2] };
        let dims = [&lead[..], &[2, 13]].concat();
        let batch = |step| {
            Named::from([("tokens".to_owned(), tokens(&dims, step)), ("targets".to_owned(), tokens(&dims, step + 7))])
        };
        let options = TrainOptions { micro_batches, seed: 0x1234_5678_9abc, ..TrainOptions::default() };
        let mut reference = OnReference::new(&forward, &params, &options, false);
        let expected: Vec<f64> = (0..3).map(|step| reference.loss(&batch(step))).collect();
        for mode in [Mode::Recorded, Mode::Fused] {
            let compile = CompileOptions { poison: true, ..CompileOptions::mode(mode) };
            let trainer = session.trainer(&forward, &params, &options, &compile).unwrap();
            let batches: Vec<Named> = (0..3).map(batch).collect();
            let reports = trainer.run_steps(&batches.iter().map(refs).collect::<Vec<_>>()).unwrap();
            for (report, expected) in reports.iter().zip(&expected) {
                assert_numbers(&format!("{mode}"), &[f64::from(report.loss)], &[*expected], 1e-5);
            }
            // another seed drops others
            let other = TrainOptions { seed: 1, ..options.clone() };
            let other = session.trainer(&forward, &params, &other, &compile).unwrap();
            assert_ne!(other.step(&refs(&batches[0])).unwrap().loss, reports[0].loss);
        }
    }
}

#[test]
fn steps_on_matrix_units_are_the_reference_s_however_exponents_are_shared() {
    let Some(session) = session().filter(|s| s.caps().f16) else { return };
    let model = Gptlite::new(GptliteConfig::new(23, 2, 32, 2, 24));
    let forward = model.build_training(1, 24, Loss::CrossEntropy).unwrap();
    let params = init(&forward.layout, Init::He, 1).unwrap();
    // what norms or blocks make is computed anew, and has exponents of its own; of a step's way, and ReLUs may turn
    for (precision, of_loss, of_way, checkpoint, micro_batches) in [
        (MatmulPrecision::High, 2e-6, 1e-3, Checkpoint::Norms, 2),
        (MatmulPrecision::Medium, 2e-3, 0.1, Checkpoint::Every(1), 1),
    ] {
        let dims = if micro_batches == 1 { vec![1, 24] } else { vec![micro_batches, 1, 24] };
        let (optimiser, learning_rate) = (Optimiser::sgd(), Schedule::constant(0.1));
        let options = TrainOptions { optimiser, learning_rate, checkpoint, micro_batches, ..options() };
        let compile = on_units(session, CompileOptions { precision, ..poisoned(Mode::Fused) });
        let trainer = session.trainer(&forward, &params, &options, &compile).unwrap();
        let steps = &trainer.program().compiled().selected.steps;
        let count = |name: &str| steps.iter().filter(|s| s.launch.key.name() == name).count();
        let (exponents, products) = (count("exponents"), count("matmul_units"));
        // of two products backwards the second finds its operands' exponents there
        assert!(exponents > 0 && exponents < products, "{exponents} of {products}");
        let mut reference = OnReference::new(&forward, &params, &options, false);
        for step in 0..2 {
            let batch = [("tokens", tokens(&dims, step)), ("targets", tokens(&dims, step + 7))];
            let batch = Named::from(batch.map(|(name, t)| (name.to_owned(), t)));
            let report = trainer.step(&refs(&batch)).unwrap();
            assert_numbers("loss", &[f64::from(report.loss)], &[reference.loss(&batch)], of_loss);
        }
        for (name, got) in trainer.parameters().unwrap() {
            let (got, want, start) = (got.to_f64(), reference.parameter(&name), params[&name].to_f64());
            let (way, off) = (distance(&want, &start), distance(&got, &want));
            assert!(off <= of_way * way, "{precision}: {name} is off by {off:.1e}, its way is {way:.1e}");
        }
    }
}

#[test]
fn rows_of_a_packed_weight_are_frozen_and_scaled_where_they_lie() {
    let Some(session) = session() else { return };
    let frozen = ["blocks.1.sa.heads.2.query.weight", "blocks.0.sa.heads.0.value.weight"];
    // rows of 64 can be bound by themselves, rows of 60 cannot
    for model in ["gptlite_tiny", "gptlite_odd"] {
        let golden = Golden::open(model, Loss::CrossEntropy);
        for (optimiser, limited) in
            [(Optimiser::adamw(0.1), false), (Optimiser::sgd(), false), (Optimiser::adam(), true)]
        {
            let options = TrainOptions {
                optimiser,
                skip_non_finite: limited,
                clip_norm: limited.then_some(0.5),
                learning_rate: Schedule::constant(1e-2),
                groups: vec![
                    Group::no_decay(),
                    Group::scaled(Names::within("blocks.0.sa.heads.1"), 0.5),
                    Group::frozen(Names::exactly(frozen)),
                ],
                ..TrainOptions::default()
            };
            let mut reference = OnReference::new(&golden.forward, &golden.params, &options, true);
            let limits = Some(DeviceCaps { storage_align: 256, ..session.caps().clone() });
            let compile = CompileOptions { limits, ..CompileOptions::default() };
            let trainer = session.trainer(&golden.forward, &golden.params, &options, &compile).unwrap();
            for _ in 0..2 {
                trainer.step(&refs(&golden.batch)).unwrap();
                reference.loss(&golden.batch);
            }
            // Adam divides small gradients by themselves
            assert_parameters(&optimiser.to_string(), &trainer, &reference, 1e-3);
            for name in frozen {
                assert_eq!(trainer.parameters().unwrap()[name], golden.params[name], "{name}");
            }
            // nothing is copied: each piece is stepped in its rows
            let text = trainer.program().compiled().selected.to_string();
            let copied = text.lines().any(|l| l.starts_with("blocks.0.sa.qkv.weight (copy)"));
            let bound_alone = model == "gptlite_tiny" || optimiser == Optimiser::sgd();
            assert_eq!(copied, !bound_alone, "{model}, {optimiser}, limited {limited}");
        }
    }
}

#[test]
fn a_gradient_in_pieces_gives_the_same_weights() {
    let Some(session) = session() else { return };
    let config = DnnConfig { in_size: 64, width: 320, depth: 3, out_size: 10 };
    let forward = Dnn::new(config).build_training(40, Loss::CrossEntropy).unwrap();
    let params = init(&forward.layout, Init::He, 3).unwrap();
    let input: Vec<f32> = (0..40 * 64).map(|i| ((i * 7) as f32).sin()).collect();
    let targets: Vec<i32> = (0..40).map(|i| i % 10).collect();
    let batch = Named::from([
        ("input".to_owned(), Tensor::f32([40, 64], &input)),
        ("targets".to_owned(), Tensor::i32([40], &targets)),
    ]);
    for optimiser in [Optimiser::sgd(), Optimiser::adam()] {
        let whole = TrainOptions { optimiser, ..TrainOptions::default() };
        let pieces = TrainOptions { piece_bytes: 100 << 10, ..whole.clone() };
        let [whole, pieces] = [whole, pieces].map(|options| {
            let trainer = session.trainer(&forward, &params, &options, &CompileOptions::default()).unwrap();
            trainer.run_steps(&[refs(&batch), refs(&batch)]).unwrap();
            trainer
        });
        let (a, b) = (whole.parameters().unwrap(), pieces.parameters().unwrap());
        for (name, a) in a {
            assert_numbers(&name, &b[&name].to_f64(), &a.to_f64(), 1e-5);
        }
        let launches = |t: &kiln::trainer::Trainer| {
            let text = t.program().compiled().selected.to_string();
            text.lines().filter(|l| l.contains("layers.2.weight.grad.piece: ")).count()
        };
        // 320 rows of 1280 bytes, at most 80 at a time
        assert!(launches(&pieces) >= 4 && launches(&whole) == 0, "{}", launches(&pieces));
        let text = pieces.program().compiled().selected.to_string();
        let moved: Vec<&str> = text.lines().filter(|l| l.contains("adam.m.layers.2.weight (copy)")).collect();
        assert_eq!(moved, [""; 0]);
    }
}

#[test]
fn checkpoints_and_micro_batches_go_together() {
    let Some(session) = session() else { return };
    let model = Gptlite::new(GptliteConfig::new(23, 4, 24, 3, 16).with_dropout(0.2));
    let forward = model.build_training(1, 16, Loss::Seed).unwrap();
    let params = init(&forward.layout, Init::Default, 5).unwrap();
    let batch =
        Named::from([("tokens".to_owned(), tokens(&[2, 1, 16], 0)), ("targets".to_owned(), tokens(&[2, 1, 16], 1))]);
    let trained = |checkpoint| {
        let options = TrainOptions { micro_batches: 2, checkpoint, ..TrainOptions::default() };
        let trainer = session.trainer(&forward, &params, &options, &CompileOptions::default()).unwrap();
        let reports = trainer.run_steps(&[refs(&batch), refs(&batch)]).unwrap();
        (reports, trainer.parameters().unwrap(), trainer.program().plan().total())
    };
    let (losses, kept, all) = trained(Checkpoint::None);
    let (again, anew, fewer) = trained(Checkpoint::Every(1));
    assert_eq!(losses, again);
    assert_eq!(bytes(&anew), bytes(&kept));
    assert!(fewer < all, "{fewer} bytes with checkpoints, {all} without");
}

#[test]
fn f16_trains_as_on_the_reference_where_the_adapter_has_it() {
    let Some(session) = session() else { return };
    let golden = Golden::open("dnn_wide_small", Loss::CrossEntropy);
    let options = TrainOptions { precision: Precision::F16(LossScaling::default()), ..golden_options() };
    let compile = CompileOptions { poison: true, ..CompileOptions::default() };
    let trainer = session.trainer(&golden.forward, &golden.params, &options, &compile);
    if !session.caps().f16 {
        assert!(matches!(trainer, Err(Error::Select(SelectError::NoF16 { .. }))));
        return println!("skipped: the adapter has no f16");
    }
    let trainer = trainer.unwrap();
    let mut reference = OnReference::new(&golden.forward, &golden.params, &options, true);
    for _ in 0..3 {
        let (report, expected) = (trainer.step(&refs(&golden.batch)).unwrap(), reference.loss(&golden.batch));
        assert_eq!((report.skipped, report.loss_scale), (false, Some(65536.0)));
        assert!((f64::from(report.loss) - expected).abs() <= 1e-3 * expected, "{}, {expected}", report.loss);
    }
}

#[test]
fn f16_adds_up_micro_batches_and_clips_as_on_the_reference() {
    let Some(session) = session().filter(|s| s.caps().f16) else { return println!("skipped: no f16") };
    let graph = network(4);
    let precision = Precision::F16(LossScaling { initial: 1024.0, growth_steps: 3 });
    let options = TrainOptions { precision, micro_batches: 2, clip_norm: Some(0.5), ..options() };
    let trainer = trainer(session, &graph, &options);
    let mut reference = OnReference::new(&graph, &params(&graph), &options, true);
    for step in 0..5 {
        let [first, second] = [0, 1].map(|micro| batch(4, 2 * step + micro));
        let both = |(name, t): (&String, &Tensor)| {
            let dims = [&[2], t.shape().dims()].concat();
            let bytes = [t.bytes(), second[name].bytes()].concat();
            (name.clone(), Tensor::from_bytes(TensorType::new(t.dtype(), dims), bytes))
        };
        let both: Named = first.iter().map(both).collect();
        let (report, expected) = (trainer.step(&refs(&both)).unwrap(), reference.step(&both));
        assert_eq!(report.loss_scale, Some(expected["loss_scale"].data[0] as f32));
        let got = [report.loss, report.grad_norm.unwrap()].map(f64::from);
        for (got, name) in got.iter().zip(["loss", "grad_norm"]) {
            let expected = expected[name].data[0];
            assert!((got - expected).abs() <= 5e-3 * expected, "step {step}: {name} {got}, {expected}");
        }
    }
}

/// In f16 the forward pass reads copies of the weights. Whoever sets a weight sets its copy: a trainer whose weights
/// are set in any way goes on to the bit as one that was made with them.
#[test]
fn weights_that_are_set_leave_no_stale_copy_in_f16() {
    let Some(session) = session().filter(|s| s.caps().f16) else { return println!("skipped: no f16") };
    let graph = network(4);
    for optimiser in [Optimiser::adamw(0.1), Optimiser::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }] {
        let precision = Precision::F16(LossScaling::default());
        let options = TrainOptions { precision, optimiser, groups: vec![Group::no_decay()], ..options() };
        let batches: Vec<Named> = (0..6).map(|step| batch(4, step)).collect();
        let all: Vec<_> = batches.iter().map(refs).collect();
        let straight = trainer(session, &graph, &options);
        let expected = straight.run_steps(&all).unwrap();
        assert!(expected[3..].iter().all(|r| !r.skipped), "{expected:?}");
        let halfway = trainer(session, &graph, &options);
        assert_eq!(halfway.run_steps(&all[..3]).unwrap(), expected[..3]);
        let dir = tempfile::tempdir().unwrap();
        halfway.save(dir.path()).unwrap();
        let weights = halfway.parameters().unwrap();
        let states: Vec<String> = halfway.program().states().map(String::from).collect();
        assert!(states.iter().all(|s| !s.contains("f16")), "{states:?}");
        let zeros = Named::from_iter(weights.iter().map(|(n, t)| (n.clone(), Tensor::zeros(t.ty().clone()))));
        for way in ["loaded", "written", "copied"] {
            let other = session.trainer(&graph, &zeros, &options, &CompileOptions::default()).unwrap();
            other.run_steps(&all[..3]).unwrap();
            if way == "loaded" {
                other.load(dir.path()).unwrap();
            }
            for state in states.iter().filter(|_| way != "loaded") {
                let value = halfway.program().read_state(state).unwrap();
                match way {
                    "written" => other.program().write_state(state, &value).unwrap(),
                    _ => other.program().copy_state(state, &session.upload(&value).unwrap()).unwrap(),
                }
            }
            assert_eq!(other.run_steps(&all[3..]).unwrap(), expected[3..], "{optimiser}, {way}");
        }
        assert_eq!(bytes(&halfway.parameters().unwrap()), bytes(&weights));
    }
}

/// Layers whose rows one kernel carries, and a kernel a layer: the same weights after ten steps of Adam, under the same
/// names, from a checkpoint too.
#[test]
fn a_stack_trains_as_its_layers_do() {
    let Some(session) = session() else { return };
    let forward = Dnn::new(DnnConfig::square(64, 70)).build_training(24, Loss::CrossEntropy).unwrap();
    let params = init(&forward.layout, Init::He, 3).unwrap();
    let input: Vec<f32> = (0..24 * 64).map(|i| ((i * 7) as f32).sin()).collect();
    let targets: Vec<i32> = (0..24).map(|i| i % 64).collect();
    let batch = Named::from([
        ("input".to_owned(), Tensor::f32([24, 64], &input)),
        ("targets".to_owned(), Tensor::i32([24], &targets)),
    ]);
    let trained = |mode, checkpoint| {
        let options = TrainOptions { learning_rate: Schedule::constant(1e-4), checkpoint, ..TrainOptions::default() };
        let compile = tiled(session, CompileOptions { poison: true, ..CompileOptions::mode(mode) });
        session.trainer(&forward, &params, &options, &compile).unwrap()
    };
    let written = trained(Mode::Recorded, Checkpoint::None);
    let stacked = trained(Mode::Fused, Checkpoint::None);
    let report = stacked.program().report().to_string();
    assert!(report.contains("stacks: layers.0-138: 70 layers of 64 → 2 of 35, each in one kernel"), "{report}");
    assert!(stacked.program().dispatches() * 20 < written.program().dispatches());
    let batches = vec![refs(&batch); 10];
    let expected = written.run_steps(&batches).unwrap();
    let (wanted, start) = (written.parameters().unwrap(), &params);
    for checkpoint in [Checkpoint::None, Checkpoint::Every(16)] {
        let stacked = trained(Mode::Fused, checkpoint);
        stacked.run_steps(&batches[..5]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        stacked.save(dir.path()).unwrap();
        let second = trained(Mode::Fused, checkpoint);
        second.load(dir.path()).unwrap();
        let losses = second.run_steps(&batches[5..]).unwrap();
        for (got, want) in losses.iter().zip(&expected[5..]) {
            assert!((got.loss - want.loss).abs() <= 1e-4 * want.loss, "{checkpoint:?}: {} for {}", got.loss, want.loss);
        }
        let got = second.parameters().unwrap();
        assert!(got.keys().eq(wanted.keys()));
        for (name, want) in &wanted {
            // relative to the way that ten steps go
            let (want, got, start) = (want.to_f64(), got[name].to_f64(), start[name].to_f64());
            let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let (off, moved) = (distance(&got, &want), distance(&want, &start));
            assert!(off <= 1e-2 * moved, "{checkpoint:?}: {name} is off by {off:.1e} after a way of {moved:.1e}");
        }
    }
}
