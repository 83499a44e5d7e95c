{# What kernels of attention share: four neighbours of a head's row, read and written, for the bindings that `reads`
and `writes` name; of the latter those alone that `bound` lists, where it is given. #}
{% for name in reads %}

// Elements c..c+3 of a row that starts at `at`; those past the head size are 0.
fn read_{{ name }}(at: u32, c: u32) -> vec4<f32> {
{% if words %}
    let four = {{ name }}[at + c / 4u];
    return vec4<f32>(unpack2x16float(four.x), unpack2x16float(four.y));
{% elif vec %}
    return vec4<f32>({{ name }}[at + c / 4u]);
{% else %}
    var x = vec4<f32>(0.0);
    if c < p.d { x.x = f32({{ name }}[at + c]); }
    if c + 1u < p.d { x.y = f32({{ name }}[at + c + 1u]); }
    if c + 2u < p.d { x.z = f32({{ name }}[at + c + 2u]); }
    if c + 3u < p.d { x.w = f32({{ name }}[at + c + 3u]); }
    return x;
{% endif %}
}
{% endfor %}
{% for name in (bound if bound is defined else writes) %}

fn write_{{ name }}(at: u32, c: u32, x: vec4<f32>) {
{% if vec %}
    {{ name }}[at + c / 4u] = vec4<{{ scalar }}>(x);
{% else %}
    if c < p.d { {{ name }}[at + c] = {{ scalar }}(x.x); }
    if c + 1u < p.d { {{ name }}[at + c + 1u] = {{ scalar }}(x.y); }
    if c + 2u < p.d { {{ name }}[at + c + 2u] = {{ scalar }}(x.z); }
    if c + 3u < p.d { {{ name }}[at + c + 3u] = {{ scalar }}(x.w); }
{% endif %}
}
{% endfor %}
