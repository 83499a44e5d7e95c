//! What a trainer saves and goes on from.

use super::device::{refs, session};
use super::trained::{GOLDENS, Golden, Named, golden_options};
use super::{batch, bytes, network, options, params, trainer};
use kiln::Error;
use kiln::graph::{Builder, Comparison, DType, TensorType};
use kiln::model::{Checkpoint, Loss};
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;
use kiln::train::{Group, Names, Optimiser, TrainOptions};
use kiln::trainer::Trainer;
use std::collections::BTreeMap;
use std::fs;

#[test]
fn g14_training_goes_on_from_a_checkpoint_to_the_bit() {
    let Some(session) = session() else { return };
    let graph = network(4);
    for optimiser in [Optimiser::adam(), Optimiser::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }] {
        let groups = vec![Group::frozen(Names::exactly(["layers.0.bias"]))];
        let options = TrainOptions { optimiser, groups, seed: 7, ..options() };
        let run = |trainer: &Trainer, steps: std::ops::Range<usize>| {
            let batches: Vec<Named> = steps.map(|step| batch(4, step)).collect();
            trainer.run_steps(&batches.iter().map(refs).collect::<Vec<_>>()).unwrap()
        };
        let straight = trainer(session, &graph, &options);
        run(&straight, 0..5);
        let expected = run(&straight, 5..10);
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let first = trainer(session, &graph, &options);
        run(&first, 0..5);
        first.save(&folder).unwrap();
        // saving changes nothing, and what is there is replaced
        run(&first, 5..6);
        first.save(&folder).unwrap();
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        // other weights and another seed at first
        let zeros = params(&graph).into_iter().map(|(n, t)| (n, Tensor::zeros(t.ty().clone()))).collect::<Named>();
        let other = TrainOptions { seed: 8, ..options.clone() };
        let second = session.trainer(&graph, &zeros, &other, &CompileOptions::default()).unwrap();
        second.load(&folder).unwrap();
        assert_eq!(second.steps(), 6);
        assert_eq!(run(&second, 6..10), expected[1..]);
        assert_eq!(bytes(&second.parameters().unwrap()), bytes(&straight.parameters().unwrap()));
        assert_eq!(second.parameters().unwrap()["layers.0.bias"], params(&graph)["layers.0.bias"]);
    }
}

#[test]
fn a_training_with_a_frozen_part_of_what_is_packed_goes_on_in_another_mode() {
    let Some(session) = session() else { return };
    let golden = Golden::open(GOLDENS[0], Loss::CrossEntropy);
    let frozen = "blocks.0.sa.heads.0.key.weight";
    let options = TrainOptions { groups: vec![Group::frozen(Names::exactly([frozen]))], ..golden_options() };
    let made = |mode| {
        let trainer = session.trainer(&golden.forward, &golden.params, &options, &CompileOptions::mode(mode));
        trainer.unwrap_or_else(|e| panic!("{mode}: {e}"))
    };
    for (from, to) in [(Mode::Fused, Mode::Recorded), (Mode::Recorded, Mode::Fused)] {
        let (first, second) = (made(from), made(to));
        let dir = tempfile::tempdir().unwrap();
        first.run_steps(&[refs(&golden.batch), refs(&golden.batch)]).unwrap();
        first.save(dir.path()).unwrap();
        let optimiser = Checkpoint::open(dir.path().join("optimizer.safetensors")).unwrap();
        assert!(optimiser.names().all(|name| !name.ends_with(frozen)), "{from}");
        second.load(dir.path()).unwrap();
        let losses = [&first, &second].map(|trainer| {
            let reports = trainer.run_steps(&vec![refs(&golden.batch); 3]).unwrap();
            f64::from(reports[2].loss)
        });
        assert!((losses[0] - losses[1]).abs() < 1e-5 * losses[0], "{from} to {to}: {losses:?}");
        assert_eq!(second.parameters().unwrap()[frozen], golden.params[frozen]);
    }
}

#[test]
fn weights_are_saved_under_pytorchs_names_alone() {
    let Some(session) = session() else { return };
    for name in [GOLDENS[0], GOLDENS[2]] {
        let golden = Golden::open(name, Loss::CrossEntropy);
        let compile = CompileOptions::default();
        let trainer = session.trainer(&golden.forward, &golden.params, &golden_options(), &compile).unwrap();
        let dir = tempfile::tempdir().unwrap();
        trainer.save(dir.path()).unwrap();
        let model = Checkpoint::open(dir.path().join("model.safetensors")).unwrap();
        assert!(model.names().eq(golden.params.keys().map(String::as_str)));
        for (name, tensor) in &golden.params {
            assert_eq!(&model.tensor(name, tensor.dtype()).unwrap(), tensor, "{name}");
        }
        let optimiser = Checkpoint::open(dir.path().join("optimizer.safetensors")).unwrap();
        let moments = |m: &'static str| golden.params.keys().map(move |name| format!("adam.{m}.{name}"));
        assert!(optimiser.names().eq(moments("m").chain(moments("v"))));
        assert_eq!(model.metadata("format"), Some("pt"));
        let words = ["optimiser", "step", "seed"].map(|key| optimiser.metadata(key).unwrap());
        assert_eq!(words, ["adam", "0", "0"]);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let Some(session) = session() else { return };
    let graph = network(4);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let saved = trainer(session, &graph, &options());
    saved.step(&refs(&batch(4, 0))).unwrap();
    saved.save(at("one")).unwrap();
    saved.step(&refs(&batch(4, 1))).unwrap();
    saved.save(at("two")).unwrap();
    let refused = |trainer: &Trainer, folder: &str| {
        let before = trainer.parameters().unwrap();
        let error = trainer.load(at(folder)).unwrap_err();
        assert!(matches!(error, Error::Checkpoint(_)));
        assert_eq!(bytes(&trainer.parameters().unwrap()), bytes(&before));
        error.to_string().replace(&format!("{}/", dir.path().display()), "")
    };
    // another optimiser
    let sgd = TrainOptions { optimiser: Optimiser::sgd(), ..options() };
    assert_eq!(
        refused(&trainer(session, &graph, &sgd), "one"),
        "one/optimizer.safetensors: \"optimiser\" is adam, expected sgd; make the trainer with the optimiser it was \
         saved with"
    );
    let mut optimiser = Optimiser::adam();
    if let Optimiser::Adam { beta2, eps, .. } = &mut optimiser {
        (*beta2, *eps) = (0.95, 1e-6);
    }
    assert_eq!(
        refused(&trainer(session, &graph, &TrainOptions { optimiser, ..options() }), "one"),
        "one/optimizer.safetensors: \"averages\" is betas 0.9 0.999, expected betas 0.9 0.95; make the trainer with the \
         betas it was saved with"
    );
    // files of two saves
    fs::create_dir(at("mixed")).unwrap();
    fs::copy(at("one/model.safetensors"), at("mixed/model.safetensors")).unwrap();
    fs::copy(at("two/optimizer.safetensors"), at("mixed/optimizer.safetensors")).unwrap();
    assert_eq!(
        refused(&saved, "mixed"),
        "mixed/model.safetensors: \"step\" is 1, expected 2; take both files of one save"
    );
    // another model
    let other = {
        let mut b = kiln::graph::Builder::new();
        let x = b.input("x", super::f32s(&[2, 5])).unwrap();
        let y = super::linear(&mut b, "layers.0", x, 32);
        let y = super::linear(&mut b, "head", y, 3);
        let loss = b.sum(y, &[0, 1]).unwrap();
        b.output("loss", loss).unwrap();
        b.finish().unwrap()
    };
    assert_eq!(
        refused(&trainer(session, &other, &options()), "one"),
        "one/model.safetensors: does not fit the model:\n  missing \"head.bias\"\n  missing \"head.weight\"\n  \
         \"layers.0.bias\": expected (32), got (33)\n  \"layers.0.weight\": expected (32, 5), got (33, 5)\n  in the \
         file but not in the model: layers.1.bias, layers.1.weight"
    );
    // other frozen parameters
    let frozen = TrainOptions { groups: vec![Group::frozen(Names::within("layers.1"))], ..options() };
    assert_eq!(
        refused(&trainer(session, &graph, &frozen), "one"),
        "one/optimizer.safetensors: does not fit the model:\n  in the file but not in the model: \
         adam.m.layers.1.bias, adam.m.layers.1.weight, adam.v.layers.1.bias, adam.v.layers.1.weight"
    );
    assert!(refused(&saved, "nowhere").starts_with("nowhere/model.safetensors: "));
    // a file of weights alone
    let words = "\"optimiser\" is missing, expected adam; make the trainer with the optimiser it was saved with";
    fs::create_dir(at("weights")).unwrap();
    fs::copy(at("one/model.safetensors"), at("weights/model.safetensors")).unwrap();
    kiln::model::save(at("weights/optimizer.safetensors"), &Named::new()).unwrap();
    assert_eq!(refused(&saved, "weights"), format!("weights/optimizer.safetensors: {words}"));
}

#[test]
fn a_save_that_fails_leaves_what_was_there() {
    let Some(session) = session() else { return };
    let trainer = trainer(session, &network(4), &options());
    let dir = tempfile::tempdir().unwrap();
    trainer.save(dir.path().join("run")).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(matches!(trainer.save(dir.path().join("file")), Err(Error::Checkpoint(_))));
    // the second file cannot be written: the first one's draft goes again
    fs::create_dir(dir.path().join("run/optimizer.safetensors.part")).unwrap();
    let before = fs::read(dir.path().join("run/model.safetensors")).unwrap();
    trainer.step(&refs(&batch(4, 0))).unwrap();
    assert!(trainer.save(dir.path().join("run")).is_err());
    assert_eq!(fs::read(dir.path().join("run/model.safetensors")).unwrap(), before);
    assert!(!dir.path().join("run/model.safetensors.part").exists());
    // nor put in its place: the first one is as it was
    fs::remove_dir(dir.path().join("run/optimizer.safetensors.part")).unwrap();
    let optimiser = fs::read(dir.path().join("run/optimizer.safetensors")).unwrap();
    fs::rename(dir.path().join("run/model.safetensors"), dir.path().join("model")).unwrap();
    fs::create_dir_all(dir.path().join("run/model.safetensors/file")).unwrap();
    assert!(trainer.save(dir.path().join("run")).is_err());
    assert_eq!(fs::read(dir.path().join("run/optimizer.safetensors")).unwrap(), optimiser);
    let left = || fs::read_dir(dir.path().join("run")).unwrap().count();
    assert_eq!(left(), 2, "drafts and what was put aside are gone");
    fs::remove_dir_all(dir.path().join("run/model.safetensors")).unwrap();
    fs::rename(dir.path().join("model"), dir.path().join("run/model.safetensors")).unwrap();
    trainer.load(dir.path().join("run")).unwrap();
    trainer.save(dir.path().join("run")).unwrap();
    assert_eq!(left(), 2);
    // files of two saves at the same step
    trainer.save(dir.path().join("other")).unwrap();
    fs::copy(dir.path().join("other/model.safetensors"), dir.path().join("run/model.safetensors")).unwrap();
    let error = trainer.load(dir.path().join("run")).unwrap_err().to_string();
    assert!(error.contains("save") && error.contains("take both files of one save"), "{error}");
    // a save that was cut short, before the second of its files was in its place and before the first
    let run = |name: &str| dir.path().join("run").join(name);
    trainer.save(dir.path().join("run")).unwrap();
    fs::copy(run("optimizer.safetensors"), run("optimizer.safetensors.before")).unwrap();
    fs::copy(dir.path().join("other/optimizer.safetensors"), run("optimizer.safetensors")).unwrap();
    for _ in 0..2 {
        let error = trainer.load(dir.path().join("run")).unwrap_err().to_string();
        let words = "put aside by a save that was cut short, and of the same save as model.safetensors beside it; rename \
                     it to optimizer.safetensors";
        assert_eq!(error, format!("{}: {words}", run("optimizer.safetensors.before").display()));
        fs::remove_file(run("optimizer.safetensors")).ok();
    }
    fs::rename(run("optimizer.safetensors.before"), run("optimizer.safetensors")).unwrap();
    trainer.load(dir.path().join("run")).unwrap();
    let bools = Named::from([("mask".to_owned(), Tensor::zeros(kiln::TensorType::new(kiln::DType::Bool, [2])))]);
    let error = kiln::model::save(dir.path().join("bools"), &bools).unwrap_err().to_string();
    assert!(
        error.ends_with("bools: \"mask\" is of bools, which take another size in files; cast it to i32"),
        "{error}"
    );
}

#[test]
fn a_training_that_skips_steps_goes_on_from_one_that_does_not_and_back() {
    let Some(session) = session() else { return };
    let dir = tempfile::tempdir().unwrap();
    let [plain, skips] = [false, true].map(|skip_non_finite| {
        let options = TrainOptions { skip_non_finite, ..options() };
        trainer(session, &network(4), &options)
    });
    plain.step(&refs(&batch(4, 0))).unwrap();
    plain.save(dir.path()).unwrap();
    skips.load(dir.path()).unwrap();
    assert_eq!(skips.parameters().unwrap(), plain.parameters().unwrap());
    let report = skips.step(&refs(&batch(4, 1))).unwrap();
    assert!(!report.skipped && report.step == 1);
    skips.save(dir.path()).unwrap();
    plain.load(dir.path()).unwrap();
    assert_eq!(skips.parameters().unwrap(), plain.parameters().unwrap());
}

#[test]
fn an_inference_program_has_the_present_weights() {
    let Some(session) = session() else { return };
    let golden = Golden::open("dnn_wide_small", Loss::CrossEntropy);
    let compile = CompileOptions::default();
    let trainer = session.trainer(&golden.forward, &golden.params, &golden_options(), &compile).unwrap();
    let config = kiln::model::DnnConfig { in_size: 96, width: 320, depth: 3, out_size: 128 };
    let graph = kiln::model::Dnn::new(config).build(17).unwrap();
    let input = [("input", &golden.batch["input"])];
    let program = trainer.inference(&graph, &compile).unwrap();
    let run = || program.run(&input).unwrap().remove("output").unwrap();
    let first = run();
    trainer.step(&refs(&golden.batch)).unwrap();
    assert_eq!(run(), first, "a program keeps its weights until it is refreshed");
    trainer.refresh(&program).unwrap();
    let second = run();
    assert_ne!(second, first);
    let fresh = session.compile(&graph, &trainer.parameters().unwrap(), &compile).unwrap();
    assert_eq!(fresh.run(&input).unwrap()["output"], second);
}

/// As PyTorch's optimisers leave parameters alone that have no gradient, and its `state_dict` has them.
#[test]
fn what_the_loss_is_not_made_of_is_kept_and_saved_in_every_mode() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let f32s = |dims: &[usize]| TensorType::new(DType::F32, dims.to_vec());
    let x = b.input("x", f32s(&[3, 2])).unwrap();
    let [w, other, limits, _] =
        ["w", "other", "limits", "unread"].map(|name| b.parameter(name, f32s(&[2, 2])).unwrap());
    // a comparison ends the way back
    let below = b.compare(Comparison::Less, w, limits).unwrap();
    let chosen = b.select(below, w, w).unwrap();
    let y = b.linear(x, chosen, None).unwrap();
    let loss = b.mean(y, &[0, 1]).unwrap();
    b.output("loss", loss).unwrap();
    let beside = b.linear(x, other, None).unwrap();
    b.output("beside", beside).unwrap();
    let graph = b.finish().unwrap();
    let ones = Tensor::f32([2, 2], &[1.0; 4]);
    let params: BTreeMap<String, Tensor> =
        ["w", "other", "limits", "unread"].map(|name| (name.to_owned(), ones.clone())).into();
    let dir = tempfile::tempdir().unwrap();
    let x = Tensor::f32([3, 2], &[1.0; 6]);
    let modes = [Mode::Fused, Mode::Recorded, Mode::Eager];
    let groups = vec![Group::frozen(Names::Exactly(vec!["unread".into()]))];
    let train = TrainOptions { optimiser: Optimiser::adamw(0.1), groups, ..options() };
    let make = |mode| session.trainer(&graph, &params, &train, &CompileOptions::mode(mode)).unwrap();
    for mode in modes {
        let trainer = make(mode);
        trainer.step(&[("x", &x)]).unwrap();
        let after = trainer.parameters().unwrap();
        assert!(after.keys().eq(params.keys()), "{mode}: {:?}", after.keys());
        assert_eq!(["other", "limits", "unread"].map(|name| &after[name]), [&ones; 3], "{mode}");
        assert_eq!(trainer.options(), &train, "{mode}");
        assert_ne!(after["w"], ones, "{mode}");
        trainer.save(dir.path()).unwrap();
        for other in modes {
            let next = make(other);
            next.load(dir.path()).unwrap_or_else(|e| panic!("{mode}, {other}: {e}"));
            assert_eq!(bytes(&next.parameters().unwrap()), bytes(&after), "{mode}, {other}");
        }
    }
    let missing: BTreeMap<String, Tensor> = ["w", "other", "limits"].map(|name| (name.to_owned(), ones.clone())).into();
    for mode in modes {
        let error = session.trainer(&graph, &missing, &train, &CompileOptions::mode(mode)).err().unwrap().to_string();
        assert!(error.starts_with("parameter \"unread\""), "{mode}: {error}");
    }
}
