//! Cross entropies.

use crate::common::{BOTH, Case, Result, each, full, tensor};
use kiln::graph::{CrossEntropyAttrs, DType, Op, TensorType, ValueId};
use kiln::reference::evaluate;

fn attrs(ignore_index: Option<i32>, label_smoothing: f32) -> CrossEntropyAttrs {
    CrossEntropyAttrs { axis: 1, ignore_index, label_smoothing: label_smoothing.into() }
}

/// Losses, and the gradient where each loss has this gradient.
fn outputs(c: &mut Case, name: &str, logits: ValueId, labels: ValueId, a: CrossEntropyAttrs, dloss: f32) -> Result {
    let loss = c.b.cross_entropy_rows(logits, labels, a)?;
    let sums = ValueId { node: loss.node, output: 1 };
    let dims = c.b.shape(labels).dims().to_vec();
    let dloss = c.b.constant(dloss, TensorType::new(DType::F32, dims))?;
    let gradient = c.b.op(Op::CrossEntropyGrad(a), &[logits, labels, sums, dloss]);
    c.output(format!("{name}loss"), Ok(loss));
    c.output(format!("{name}gradient"), gradient);
    Ok(())
}

/// Logits whose sum with a logarithm would lose it.
#[test]
fn s13_cross_entropy_of_large_logits() -> Result {
    let mut c = Case::new();
    for n in [2, 300] {
        let x = c.input(full(DType::F32, &[1, n], 1e8));
        let t = c.input(full(DType::I32, &[1], 1.0));
        for smoothing in [0.0, 0.25] {
            let y = c.b.cross_entropy_rows(x, t, attrs(None, smoothing));
            c.output(format!("{n} {smoothing}"), y);
        }
    }
    let (short, long) = ([std::f64::consts::LN_2], [300f64.ln()]);
    c.expect(&BOTH, 1e-6, &[("2 0", &short), ("2 0.25", &short), ("300 0", &long), ("300 0.25", &long)]);
    Ok(())
}

const LOGITS: [f64; 6] = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0];

/// An ignored target has no loss and no gradient.
#[test]
fn s15_a_target_that_is_ignored() -> Result {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[3, 2], &LOGITS));
    let t = c.input(tensor(DType::I32, &[3], &[1.0, 0.0, -100.0]));
    outputs(&mut c, "", x, t, attrs(Some(-100), 0.0), 1.0)?;
    let p = 0.26894142;
    let gradient = [p, -p, -p, p, 0.0, 0.0];
    c.expect(&BOTH, 1e-6, &[("loss", &[0.31326169, 0.31326169, 0.0]), ("gradient", &gradient)]);
    Ok(())
}

/// A target that is no class is refused with its value and the count of classes.
#[test]
fn s16_a_target_outside_the_classes() -> Result {
    for (ignore, ending) in [(None, ""), (Some(-100), " or -100")] {
        let mut c = Case::new();
        let x = c.input(tensor(DType::F32, &[3, 2], &LOGITS));
        let t = c.named("targets", tensor(DType::I32, &[3], &[1.0, 0.0, 0.0]));
        let flat = c.b.reshape(t, [3])?;
        outputs(&mut c, "", x, flat, attrs(ignore, 0.0), 1.0)?;
        let (graph, params, inputs) = c.finish();
        for target in [5, -1, 2] {
            let wrong = tensor(DType::I32, &[3], &[1.0, 0.0, f64::from(target)]);
            let told = format!(
                "input \"targets\": element 2 is {target}, but \"cross_entropy\" has 2 classes and takes 0 to 1{ending}"
            );
            each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
                let mut given = given.to_vec();
                given.iter_mut().filter(|(name, _)| *name == "targets").for_each(|(_, t)| *t = &wrong);
                assert_eq!(program.run(&given).unwrap_err().to_string(), told, "{setup}");
            });
            let mut inputs = inputs.clone();
            inputs.insert("targets".into(), wrong);
            assert!(evaluate(&graph, &params, &inputs).is_err());
        }
        if let Some(index) = ignore {
            let right = tensor(DType::I32, &[3], &[1.0, 0.0, f64::from(index)]);
            each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
                let mut given = given.to_vec();
                given.iter_mut().filter(|(name, _)| *name == "targets").for_each(|(_, t)| *t = &right);
                assert_eq!(program.run(&given).unwrap()["loss"].to_f64()[2], 0.0, "{setup}");
            });
        }
    }
    Ok(())
}

/// Nothing but ignored targets: every loss is 0, and so is every gradient, whatever a mean of none hands back.
#[test]
fn s17_every_target_is_ignored() -> Result {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[3, 2], &LOGITS));
    let t = c.input(full(DType::I32, &[3], 7.0));
    for (name, dloss) in [("one ", 1.0), ("nan ", f32::NAN), ("inf ", f32::INFINITY)] {
        outputs(&mut c, name, x, t, attrs(Some(7), 0.1), dloss)?;
    }
    let (loss, gradient) = ([0.0; 3], [0.0; 6]);
    let want: Vec<(&str, &[f64])> = vec![
        ("one loss", &loss),
        ("nan loss", &loss),
        ("one gradient", &gradient),
        ("nan gradient", &gradient),
        ("inf gradient", &gradient),
    ];
    c.expect(&BOTH, 0.0, &want);
    Ok(())
}

/// What a language model starts from.
#[test]
fn s21_zero_logits_over_a_large_vocabulary() -> Result {
    let (rows, classes) = (8, 50_257);
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[rows, classes], 0.0));
    let targets: Vec<f64> = (0..rows).map(|i| (i * 7_000) as f64).collect();
    let t = c.input(tensor(DType::I32, &[rows], &targets));
    outputs(&mut c, "", x, t, attrs(None, 0.0), 0.125)?;
    // along the first of two dimensions, as (classes, rows)
    let turned = c.input(full(DType::F32, &[1, classes, rows], 0.0));
    let t = c.input(tensor(DType::I32, &[1, rows], &targets));
    outputs(&mut c, "turned ", turned, t, attrs(None, 0.0), 0.125)?;
    c.run(&BOTH, |setup, outputs| {
        for name in ["loss", "turned loss"] {
            for loss in outputs[name].to_f64() {
                assert!((loss - 10.824905).abs() < 1e-4, "{name} ({setup}): {loss}");
            }
        }
        let off = 1.9897726e-5 / 8.0;
        for (name, step) in [("gradient", 1), ("turned gradient", rows)] {
            let gradient = outputs[name].to_f64();
            for row in 0..rows {
                let at = |class: usize| gradient[if step == 1 { row * classes + class } else { class * rows + row }];
                for class in 0..classes {
                    let want = if class == row * 7_000 { off - 0.125 } else { off };
                    assert!((at(class) - want).abs() < 1e-4 * want.abs(), "{name} {row} {class} ({setup})");
                }
            }
        }
    });
    Ok(())
}
