"""Special functions as ops of the device, for which PyTorch has no decomposition: Bessel functions,
polygamma and zeta, orthogonal polynomials.

Approximations and coefficients are those of Moshier's Cephes Mathematical Library, which PyTorch's
kernels use too. Both sides of a branch are computed, and ``where`` selects one.
"""

import math

import torch

_J0_PP = (0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687, 8.74716500199817, 5.303240382353949, 1.0)
_J0_PQ = (0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171, 8.761908832370695, 5.306052882353947, 1.0)
_J0_QP = (
    -0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683, -177.68116798048806, -147.07750515495118,
    -51.41053267665993, -6.050143506007285,
)
_J0_QQ = (64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525, 5930.727011873169, 2062.0933166032783, 242.0057402402914)
_J0_RP = (-4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0)
_J0_RQ = (
    499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683, 2112775201154.892, 310518229857422.56, 3.1812195594320496e+16,
    1.7108629408104315e+18,
)
_J1_PP = (0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076, 8.424045901417724, 5.214515986823615, 1.0)
_J1_PQ = (0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015, 8.399855543276042, 5.209828486823619, 1.0)
_J1_QP = (
    0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508, 710.8563049989261, 597.4896124006136, 211.68875710057213,
    25.207020585802372,
)
_J1_QQ = (74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562, 7997.041604473507, 2826.1927851763908, 336.0936078106983)
_J1_RP = (-899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0)
_J1_RQ = (
    620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925, 4749141220799.914, 784369607876235.9, 8.952223361846274e+16,
    5.322786203326801e+18,
)
_Y0_YP = (
    15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115, 87590639439536.7, -3466283033847297.0, 4.4273326857256984e+16,
    -1.8495080043698668e+16,
)
_Y0_YQ = (1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935, 20297961275010.555, 3171577528429750.5, 2.5059625617265306e+17)
_Y1_YP = (1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0, 2.024394757135949e+17, -7.788771962659501e+17)
_Y1_YQ = (
    594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617, 3882312774962.3857, 620557727146953.8, 6.871410873553005e+16,
    3.9727060811656064e+18,
)
_I0_A = (
    -4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16, 1.715391285555133e-15, -1.1685332877993451e-14, 7.676185498604936e-14,
    -4.856446783111929e-13, 2.95505266312964e-12, -1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10, 2.6598237246823866e-09,
    -1.300025009986248e-08, 6.046995022541919e-08, -2.670793853940612e-07, 1.1173875391201037e-06, -4.4167383584587505e-06, 1.6448448070728896e-05,
    -5.754195010082104e-05, 0.00018850288509584165, -0.0005763755745385824, 0.0016394756169413357, -0.004324309995050576, 0.010546460394594998,
    -0.02373741480589947, 0.04930528423967071, -0.09490109704804764, 0.17162090152220877, -0.3046826723431984, 0.6767952744094761,
)
_I0_B = (
    -7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17, -2.8276239805165836e-16, -3.425485619677219e-16,
    1.7725601330565263e-15, 3.8116806693526224e-15, -9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14, 3.8527783827421426e-13,
    7.180124451383666e-13, -1.7941785315068062e-12, -1.3215811840447713e-11, -3.1499165279632416e-11, 1.1889147107846439e-11, 4.94060238822497e-10,
    3.3962320257083865e-09, 2.266668990498178e-08, 2.0489185894690638e-07, 2.8913705208347567e-06, 6.889758346916825e-05, 0.0033691164782556943,
    0.8044904110141088,
)
_I1_A = (
    2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16, -1.1055969477353862e-15, 7.600684294735408e-15, -5.042185504727912e-14,
    3.223793365945575e-13, -1.9839743977649436e-12, 1.1736186298890901e-11, -6.663489723502027e-11, 3.625590281552117e-10, -1.8872497517228294e-09,
    9.381537386495773e-09, -4.445059128796328e-08, 2.0032947535521353e-07, -8.568720264695455e-07, 3.4702513081376785e-06, -1.3273163656039436e-05,
    4.781565107550054e-05, -0.00016176081582589674, 0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888, -0.010564084894626197,
    0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406, 0.25258718644363365,
)
_I1_B = (
    7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17, -3.209525921993424e-17, 2.96262899764595e-16, 3.3082023109209285e-16,
    -1.8803547755107825e-15, -3.8144030724370075e-15, 1.0420276984128802e-14, 4.272440016711951e-14, -2.1015418427726643e-14,
    -4.0835511110921974e-13, -7.198551776245908e-13, 2.0356285441470896e-12, 1.4125807436613782e-11, 3.2526035830154884e-11,
    -1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-09, -2.6314688468895196e-08, -2.512236237870209e-07,
    -3.882564808877691e-06, -0.00011058893876262371, -0.009761097491361469, 0.7785762350182801,
)
_K0_A = (
    1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11, 1.904516377220209e-09, 2.5347910790261494e-07, 2.286212103119452e-05,
    0.001264615411446926, 0.0359799365153615, 0.3442898999246285, -0.5353273932339028,
)
_K0_B = (
    5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17, -1.678231096805412e-16, 5.512055978524319e-16, -1.848593377343779e-15,
    6.3400764774050706e-15, -2.2275133269916698e-14, 8.032890775363575e-14, -2.9800969231727303e-13, 1.140340588208475e-12, -4.514597883373944e-12,
    1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10, -1.69753450938906e-09, 8.574034017414225e-09, -4.660489897687948e-08,
    2.766813639445015e-07, -1.8317555227191195e-06, 1.39498137188765e-05, -0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645,
    2.4403030820659555,
)
_K1_A = (
    -7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13, -1.4114883926335278e-10, -2.213387630734726e-08,
    -2.4334061415659684e-06, -0.0001730288957513052, -0.006975723859639864, -0.12261118082265715, -0.3531559607765449, 1.5253002273389478,
)
_K1_B = (
    -5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17, 1.838093544366639e-16, -6.057047248373319e-16, 2.038703165624334e-15,
    -7.019837090418314e-15, 2.4771544244813043e-14, -8.976705182324994e-14, 3.3484196660784293e-13, -1.2891739609510289e-12, 5.13963967348173e-12,
    -2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10, 2.015049755197033e-09, -1.0345762465678097e-08, 5.7410841254500495e-08,
    -3.5019606030878126e-07, 2.406484947837217e-06, -1.936197974166083e-05, 0.00019521551847135162, -0.002857816859622779, 0.10392373657681724,
    2.7206261904844427,
)

TABLE = {}


def _real(x):
    """Converts integers to PyTorch's default float type and short floats to float32."""
    if not x.dtype.is_floating_point:
        return x.to(torch.get_default_dtype())
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _special(name):
    """Registers a function of one tensor, with the conversions around it."""
    def add(function):
        def computed(x):
            y = function(_real(x))
            return y.to(x.dtype) if x.dtype.is_floating_point else y

        TABLE[name] = computed
        return function

    return add


def _polynomial(x, coefficients):
    y = torch.zeros_like(x)
    for coefficient in coefficients:
        y = y * x + coefficient
    return y


def _chebyshev(x, coefficients):
    """Evaluates a Chebyshev series (Clenshaw's algorithm)."""
    before, y = torch.zeros_like(x), torch.full_like(x, coefficients[0])
    last = before
    for coefficient in coefficients[1:]:
        last, before = before, y
        y = x * before - last + coefficient
    return 0.5 * (y - last)


def _wave(x, phase, tables, is_sine):
    """Asymptotic form of a Bessel function for large arguments: a damped wave."""
    pp, pq, qp, qq = tables
    square = (5.0 / x) ** 2
    p, q = _polynomial(square, pp) / _polynomial(square, pq), 5.0 / x * (_polynomial(square, qp) / _polynomial(square, qq))
    sine, cosine = torch.sin(x - phase), torch.cos(x - phase)
    value = p * sine + q * cosine if is_sine else p * cosine - q * sine
    return value * math.sqrt(2 / math.pi) / x.sqrt()


_J0 = (math.pi / 4, (_J0_PP, _J0_PQ, _J0_QP, _J0_QQ))
_J1 = (3 * math.pi / 4, (_J1_PP, _J1_PQ, _J1_QP, _J1_QQ))


@_special("special_bessel_j0")
def _bessel_j0(x):
    x = x.abs()
    square = x * x
    near = (square - 5.78318596294678452118) * (square - 30.4712623436620863991) * _polynomial(square, _J0_RP) / _polynomial(square, _J0_RQ)
    return torch.where(x < 1e-5, 1.0 - square / 4.0, torch.where(x <= 5.0, near, _wave(x, *_J0, False)))


@_special("special_bessel_j1")
def _bessel_j1(x):
    size, square = x.abs(), x * x
    near = _polynomial(square, _J1_RP) / _polynomial(square, _J1_RQ) * size * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    value = torch.where(size <= 5.0, near, _wave(size, *_J1, False))
    return torch.where(x < 0.0, -value, value)


def _of_positive(x, value):
    """Returns minus infinity at zero and NaN below."""
    return torch.where(x == 0.0, -math.inf, torch.where(x < 0.0, math.nan, value))


@_special("special_bessel_y0")
def _bessel_y0(x):
    square = x * x
    near = _polynomial(square, _Y0_YP) / _polynomial(square, _Y0_YQ) + 2 / math.pi * x.log() * _bessel_j0(x)
    return _of_positive(x, torch.where(x <= 5.0, near, _wave(x, *_J0, True)))


@_special("special_bessel_y1")
def _bessel_y1(x):
    square = x * x
    near = x * (_polynomial(square, _Y1_YP) / _polynomial(square, _Y1_YQ)) + 2 / math.pi * (_bessel_j1(x) * x.log() - 1.0 / x)
    return _of_positive(x, torch.where(x <= 5.0, near, _wave(x, *_J1, True)))


@_special("special_i0e")
def _i0e(x):
    x = x.abs()
    return torch.where(x <= 8.0, _chebyshev(x / 2.0 - 2.0, _I0_A), _chebyshev(32.0 / x - 2.0, _I0_B) / x.sqrt())


@_special("special_i1e")
def _i1e(x):
    size = x.abs()
    value = torch.where(size <= 8.0, _chebyshev(size / 2.0 - 2.0, _I1_A) * size, _chebyshev(32.0 / size - 2.0, _I1_B) / size.sqrt())
    return torch.where(x < 0.0, -value, value)


for _name in ("i0", "special_modified_bessel_i0"):
    _special(_name)(lambda x: x.abs().exp() * _i0e(x))
for _name in ("special_i1", "special_modified_bessel_i1"):
    _special(_name)(lambda x: x.abs().exp() * _i1e(x))


def _modified_k(x, near, far, is_scaled):
    """Returns infinity at zero and NaN below."""
    value = torch.where(x <= 2.0, near * x.exp() if is_scaled else near, far if is_scaled else far * (-x).exp())
    return torch.where(x == 0.0, math.inf, torch.where(x < 0.0, math.nan, value))


def _k0(x, is_scaled):
    near = _chebyshev(x * x - 2.0, _K0_A) - (0.5 * x).log() * (x.abs().exp() * _i0e(x))
    return _modified_k(x, near, _chebyshev(8.0 / x - 2.0, _K0_B) / x.sqrt(), is_scaled)


def _k1(x, is_scaled):
    near = (0.5 * x).log() * (x.abs().exp() * _i1e(x)) + _chebyshev(x * x - 2.0, _K1_A) / x
    return _modified_k(x, near, _chebyshev(8.0 / x - 2.0, _K1_B) / x.sqrt(), is_scaled)


_special("special_modified_bessel_k0")(lambda x: _k0(x, False))
_special("special_modified_bessel_k1")(lambda x: _k1(x, False))
_special("special_scaled_modified_bessel_k0")(lambda x: _k0(x, True))
_special("special_scaled_modified_bessel_k1")(lambda x: _k1(x, True))


@_special("special_spherical_bessel_j0")
def _spherical_j0(x):
    square = x * x
    series = _polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    return torch.where(x.isinf(), 0.0, torch.where(x.abs() < 0.5, series, x.sin() / x))


# Coefficients of the terms of the Euler-Maclaurin sum: (2k)! / B2k.
_EULER = (12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
          -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18)
# The number of terms that are summed directly.
_ONE_BY_ONE = 9


def _zeta(x, q):
    """The Hurwitz zeta function."""
    x, q = torch.broadcast_tensors(x, q)
    # Sum until the argument exceeds this, from wherever it starts. The number of terms depends on
    # data, so the call waits for it.
    count = _ONE_BY_ONE + max(0, math.ceil(-min(0.0, q.nan_to_num(0.0, 0.0, 0.0).min().item()))) if q.numel() else 0
    place, total = q, torch.zeros_like(q)
    term = q ** -x
    total = total + term
    for step in range(count):
        is_open = (place <= _ONE_BY_ONE) | (step < _ONE_BY_ONE)
        place = torch.where(is_open, place + 1.0, place)
        term = torch.where(is_open, place ** -x, term)
        total = torch.where(is_open, total + term, total)
    value = total + term * place / (x - 1.0) - 0.5 * term
    # Once a term is negligible, so are the rest, however large their factors get.
    is_done = total.isinf() | (term.abs() <= 1.1e-16 * total.abs())
    factor, k = torch.ones_like(x), 0.0
    for divisor in _EULER:
        factor, term = factor * (x + k), term / place
        value = value + factor * term / divisor
        factor, term = factor * (x + k + 1.0), term / place
        k += 2.0
    value = torch.where(is_done | ~value.isfinite(), total, value)
    is_pole, is_whole = (q <= 0.0) & (q == q.floor()), x == x.floor()
    value = torch.where((q <= 0.0) & ~is_whole, math.nan, value)
    value = torch.where(is_pole, math.inf, value)
    return torch.where(x == 1.0, math.inf, torch.where(x < 1.0, math.nan, value))


def _two(x, y):
    """Returns two operands in the float type that PyTorch computes in, and the type of the
    result."""
    dtype = torch.result_type(x, y)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return x.to(wide), y.to(wide), dtype


def _special_zeta(x, q):
    x, q, dtype = _two(x, q)
    return _zeta(x, q).to(dtype)


TABLE["special_zeta"] = _special_zeta


def _trigamma(x):
    is_left = x < 0.5
    reflected = torch.where(is_left, (math.pi / torch.sin(math.pi * x)) ** 2, 0.0)
    x, total = torch.where(is_left, 1.0 - x, x), torch.zeros_like(x)
    for _ in range(6):
        total, x = total + 1.0 / (x * x), x + 1.0
    small = 1.0 / (x * x)
    total = total + (1.0 + 1.0 / (2.0 * x) + small * (1.0 / 6.0 - small * (1.0 / 30.0 - small / 42.0))) / x
    return torch.where(is_left, reflected - total, total)


def _polygamma(n, x):
    wide = _real(x)
    if n == 0:
        value = wide.digamma()
    elif n == 1:
        value = _trigamma(wide)
    else:
        value = (-1.0) ** (n + 1) * math.exp(math.lgamma(n + 1.0)) * _zeta(torch.full_like(wide, n + 1.0), wide)
    return value.to(x.dtype) if x.dtype.is_floating_point else value


TABLE["polygamma"] = _polygamma


def _recurrence(x, n, first, step):
    """Evaluates a polynomial of degree ``n`` by its three-term recurrence. The degree may differ
    per element; the call waits for the largest one."""
    x, n = torch.broadcast_tensors(x, n)
    n = n.trunc()
    before, y = torch.ones_like(x), first(x)
    value = torch.where(n == 0.0, before, y)
    for k in range(2, int(n.nan_to_num(0.0, 0.0, 0.0).max().item()) + 1 if n.numel() else 0):
        before, y = y, step(x, y, before, k)
        value = torch.where(n == k, y, value)
    return torch.where(n < 0.0, 0.0, value)


def _family(name, first, step):
    def computed(x, n):
        x, n, dtype = _two(x, n)
        return _recurrence(x, n, first, step).to(dtype)

    TABLE[f"special_{name}"] = computed


for _kind, _first in {"t": lambda x: x, "u": lambda x: x + x, "v": lambda x: x + x - 1.0, "w": lambda x: x + x + 1.0}.items():
    _family(f"chebyshev_polynomial_{_kind}", _first, lambda x, y, before, k: (x + x) * y - before)
    _family(f"shifted_chebyshev_polynomial_{_kind}", lambda x, first=_first: first(x + x - 1.0),
            lambda x, y, before, k: 2.0 * (x + x - 1.0) * y - before)
_family("hermite_polynomial_h", lambda x: x + x, lambda x, y, before, k: (x + x) * y - 2.0 * (k - 1) * before)
_family("hermite_polynomial_he", lambda x: x, lambda x, y, before, k: x * y - (k - 1.0) * before)
_family("laguerre_polynomial_l", lambda x: 1.0 - x, lambda x, y, before, k: ((2 * k - 1 - x) * y - (k - 1.0) * before) / k)
_family("legendre_polynomial_p", lambda x: x, lambda x, y, before, k: ((2.0 * k - 1.0) * x * y - (k - 1.0) * before) / k)
