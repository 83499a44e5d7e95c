{% from "shared/units.wgsl" import put_halves %}
{% from "shared/attend_block.wgsl" import largest_of, within, column %}
{% from "shared/attend_rows.wgsl" import most %}
{#
Keys and values of attention_units.wgsl that are scaled. All have the usual scale, that of some of them, but for rows that
would lose by it, and blocks with such a row are noted in `odd`. What undoes a key's scale lies in key_factors, and how much
larger a value's exponent is than the usual one in value_shifts. `s` is that of shared/attend_block.wgsl.
#}

{# the function that chooses a row's scale #}
{% macro near() %}
// The exponent to scale a row of this largest magnitude by: the usual one where the row loses nothing by it; 0, which
// none is, for one that is broken.
fn near(magnitude: u32, usual: u32) -> u32 {
    let own = select(exponent(magnitude), 0u, broken(magnitude));
    return select(own, usual, magnitude == 0u || (own <= usual && own + 11u >= usual));
}
{% endmacro %}

{# declares the exponents of the usual scales and what undoes that of keys #}
{% macro usual_scales(s, u) %}
    // the usual exponents leave four bits above the largest of four columns of each of 32 rows
    var largest_key = 0u;
    var largest_value = 0u;
    for (var i = l; i < 32u; i += {{ u.lanes }}u) {
        let j = i * u32(max(last, 0)) / 32u;
        let c = i % {{ s.columns }}u * 4u;
        let key = magnitude(read_k(at_k + j * p.k_row, c));
        let value = magnitude(read_v(at_v + j * p.v_row, c));
        largest_key = max(largest_key, select(key, 0u, broken(key)));
        largest_value = max(largest_value, select(value, 0u, broken(value)));
    }
    let usual_key = exponent({{ most("largest_key", u) }}) + 4u;
    let usual_value = exponent({{ most("largest_value", u) }}) + 4u;
    let usual_factor = factor_by(usual_key, 0u);
{% endmacro %}

{# stages what an invocation holds of rows of keys and values #}
{% macro stage_scaled(s, u) %}
{{ largest_of(["k", "v"], s) }}
            let of_key = near(largest_0, usual_key);
            let of_value = near(largest_1, usual_value);
            let key_scale = scale_by(of_key, largest_0);
            let value_scale = scale_by(of_value, largest_1);
            let r = id / {{ s.share }}u;
            {{ within(0, s) }}{
{% for c in range(s.held) %}
{% set at = "r * " ~ (s.width // 4 + 2) ~ "u + " ~ column(c, s) %}
{{ put_halves("k", at, "scaled(k_" ~ c ~ ", key_scale)", u) }}
{{ put_halves("v", at, "scaled(v_" ~ c ~ ", value_scale)", u) }}
{% endfor %}
                if id % {{ s.share }}u == 0u {
                    key_factors[r] = factor_by(of_key, largest_0);
                    value_shifts[r] = select(f32(of_value) - f32(usual_value), factor_by(of_value, largest_1), broken(largest_1));
                    if of_key != usual_key || of_value != usual_value {
                        atomicStore(&odd, u32(at_block) + 1u);
                    }
                }
            }
{% endmacro %}
