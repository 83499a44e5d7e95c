// y = Σ over parts of x, for x (parts, count) in f32 as a first stage leaves it{{ ", and z = Σ over parts of w likewise" if second else "" }}.
//
// One invocation makes {{ "four neighbours" if vec else "one element" }} of y{{ "; the workgroups of z, an element an invocation, follow those of y" if second else "" }}. Parts are added
// in turn; eight are read at once, so that their waits for memory overlap.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    parts: u32,
    y_count: u32, // in elements of the arrays, as all that follows
    y_first: u32,
{% if second %}
    y_groups: u32,
    z_count: u32,
    z_first: u32,
{% endif %}
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> x: array<{{ wide }}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ stored }}>;
{% if second %}
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read_write> z: array<{{ scalar }}>;
{% endif %}

{% include "shared/group.wgsl" %}
{% macro sum(from, count, T) %}
        var all = {{ T }}(0.0);
        for (var first = 0u; first < p.parts; first += 8u) {
{% for i in range(8) %}
            let v{{ i }} = {{ from }}[min(first + {{ i }}u, p.parts - 1u) * {{ count }} + at];
{% endfor %}
{% for i in range(8) %}
            all += select({{ T }}(0.0), v{{ i }}, first + {{ i }}u < p.parts);
{% endfor %}
        }
{% endmacro %}

{% include "shared/main.wgsl" %}
{% if second %}
    if group >= p.y_groups {
        let at = (group - p.y_groups) * {{ size }}u + index;
        if at >= p.z_count {
            return;
        }
{{ sum("w", "p.z_count", "f32") }}
        z[p.z_first + at] = {{ scalar }}(all);
        return;
    }
{% endif %}
    let at = group * {{ size }}u + index;
    if at < p.y_count {
{{ sum("x", "p.y_count", wide) }}
        y[p.y_first + at] = {{ stored }}(all);
    }
}
