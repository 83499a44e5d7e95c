//! In: a kernel's name and the values of its key; out: WGSL, from the templates in shaders/.

use minijinja::{Environment, Value};
use std::sync::LazyLock;

macro_rules! templates {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../shaders/", $name)))),*] };
}

const TEMPLATES: &[(&str, &str)] = templates![
    "shared/group.wgsl",
    "shared/chain.wgsl",
    "elementwise.wgsl",
    "copy.wgsl",
    "fill.wgsl",
    "gather.wgsl",
    "matmul.wgsl",
    "matmul_direct.wgsl",
    "softmax.wgsl",
    "norm.wgsl",
    "reduce.wgsl",
    "attention.wgsl",
];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
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
