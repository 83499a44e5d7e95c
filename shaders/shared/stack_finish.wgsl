// What is done with a sum, {{ "the value that the layer before made being i1" if backward else "the bias being i1" }}.
fn finish(i0: vec4<f32>, i1: vec4<f32>) -> vec4<f32> {
{% for step in steps %}
    let t{{ loop.index0 }} = {{ step }};
{% endfor %}
    return {{ result }};
}
