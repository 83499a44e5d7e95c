// Functions of integers on T = {{ T }} that WGSL lacks or leaves to the hardware. They wrap at 32 bits.

// Truncated towards zero; a / 0 is a, and the lowest number by -1 is itself, as WGSL says where it checks.
fn k_div(a: {{ T }}, b: {{ T }}) -> {{ T }} {
{% if signed %}
    let whole = (b == {{ T }}(0)) | ((a == {{ T }}(i32(-2147483648))) & (b == {{ T }}(-1)));
{% else %}
    let whole = b == {{ T }}(0);
{% endif %}
    return a / select(b, {{ T }}(1), whole);
}

// By squaring. {{ "A negative power is truncated too: of 1 and -1 alone something is left." if signed }}
fn k_pow(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    var power = {{ T }}(1);
    var square = a;
    for (var bit = 0u; bit < 32u; bit += 1u) {
        power = select(power, power * square, ((b >> {{ shift }}(bit)) & {{ T }}(1)) == {{ T }}(1));
        square = square * square;
    }
{% if signed %}
    let odd = (b & {{ T }}(1)) == {{ T }}(1);
    let unit = select({{ T }}(0), select({{ T }}(1), a, odd), abs(a) == {{ T }}(1));
    return select(power, unit, b < {{ T }}(0));
{% else %}
    return power;
{% endif %}
}
