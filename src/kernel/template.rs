//! In: a kernel's name and the values of its key; out: WGSL, from the templates in shaders/.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value};
use std::sync::LazyLock;

macro_rules! templates {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../shaders/", $name)))),*] };
}

const TEMPLATES: &[(&str, &str)] = templates![
    "shared/group.wgsl",
    "shared/merge.wgsl",
    "shared/attend.wgsl",
    "shared/attend_grad.wgsl",
    "shared/chain.wgsl",
    "shared/heads.wgsl",
    "shared/integer.wgsl",
    "shared/keys.wgsl",
    "shared/philox.wgsl",
    "shared/product.wgsl",
    "adam.wgsl",
    "attention.wgsl",
    "attention_direct.wgsl",
    "attention_grad.wgsl",
    "attention_grad_direct.wgsl",
    "attention_stats.wgsl",
    "cross_entropy.wgsl",
    "cross_entropy_grad.wgsl",
    "dropout.wgsl",
    "elementwise.wgsl",
    "fill.wgsl",
    "gather.wgsl",
    "matmul.wgsl",
    "matmul_direct.wgsl",
    "norm.wgsl",
    "norm_grad.wgsl",
    "norm_param_grad.wgsl",
    "probe.wgsl",
    "reduce.wgsl",
    "scatter.wgsl",
    "softmax.wgsl",
    "softmax_grad.wgsl",
    "sum_parts.wgsl",
];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    env.set_syntax(syntax.expect("the default delimiters differ"));
    env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    for (name, text) in TEMPLATES {
        env.add_template(name, text).expect("templates are checked by tests");
    }
    env
});

/// Renders `NAME.wgsl`. Its variables come from a key alone, so a failure is a fault of the template.
pub fn render(name: &str, values: Value) -> String {
    let template = ENVIRONMENT.get_template(&format!("{name}.wgsl")).expect("every kernel has a template");
    template.render(values).unwrap_or_else(|e| panic!("template {name}.wgsl does not render: {e:#}"))
}
