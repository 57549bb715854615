"""Where a country's people are, if the country is all that is known of a client. Sans-IO.

Degrees as the CIA World Factbook gives them ("Geographic coordinates", public domain), to a quarter
of a degree. Databases put clients of whom they know no city at such points, so a record at one of
them says the country and nothing more. `_OTHERS` are points that MaxMind uses beside these. In a
few large countries the middle is far from where people live: there `_PEOPLE`, the largest city or a
point between the largest, in whole degrees, stands for the country.
"""

from firstlight.shared.routing.geo import Place

_POINTS = """
AD 42.5 1.5;AE 24 54;AF 33 65;AG 17 -61.75;AI 18.25 -63.25;AL 41 20;AM 40 45;AO -12.5 18.5
AR -34 -64;AS -14.25 -170;AT 47.25 13.25;AU -27 133;AW 12.5 -70;AX 60.25 20;AZ 40.5 47.5;BA 44 18
BB 13.25 -59.5;BD 24 90;BE 50.75 4;BF 13 -2;BG 43 25;BH 26 50.5;BI -3.5 30;BJ 9.5 2.25
BL 18 -62.75;BM 32.25 -64.75;BN 4.5 114.75;BO -17 -65;BQ 12.25 -68.25;BR -10 -55;BS 24.25 -76
BT 27.5 90.5;BW -22 24;BY 53 28;BZ 17.25 -88.75;CA 60 -95;CD 0 25;CF 7 21;CG -1 15;CH 47 8;CI 8 -5
CK -21.25 -159.75;CL -30 -71;CM 6 12;CN 35 105;CO 4 -72;CR 10 -84;CU 21.5 -80;CV 16 -24
CW 12.25 -69;CY 35 33;CZ 49.75 15.5;DE 51 9;DJ 11.5 43;DK 56 10;DM 15.5 -61.25;DO 19 -70.75
DZ 28 3;EC -2 -77.5;EE 59 26;EG 27 30;EH 24.5 -13;ER 15 39;ES 40 -4;ET 8 38;FI 64 26;FJ -18 175
FK -51.75 -59;FM 7 158.25;FO 62 -7;FR 46 2;GA -1 11.75;GB 54 -2;GD 12 -61.75;GE 42 43.5;GF 4 -53
GG 49.5 -2.5;GH 8 -2;GI 36.25 -5.25;GL 72 -40;GM 13.5 -16.5;GN 11 -10;GP 16.25 -61.5;GQ 2 10
GR 39 22;GT 15.5 -90.25;GU 13.5 144.75;GW 12 -15;GY 5 -59;HK 22.25 114.25;HN 15 -86.5
HR 45.25 15.5;HT 19 -72.5;HU 47 20;ID -5 120;IE 53 -8;IL 31.5 34.75;IM 54.25 -4.5;IN 20 77
IO -6 71.5;IQ 33 44;IR 32 53;IS 65 -18;IT 42.75 12.75;JE 49.25 -2.25;JM 18.25 -77.5;JO 31 36
JP 36 138;KE 1 38;KG 41 75;KH 13 105;KI 1.5 173;KM -12.25 44.25;KN 17.25 -62.75;KP 40 127
KR 37 127.5;KW 29.5 45.75;KY 19.5 -80.5;KZ 48 68;LA 18 105;LB 33.75 35.75;LC 14 -61;LI 47.25 9.5
LK 7 81;LR 6.5 -9.5;LS -29.5 28.5;LT 56 24;LU 49.75 6.25;LV 57 25;LY 25 17;MA 32 -5;MC 43.75 7.5
MD 47 29;ME 42.5 19.25;MF 18 -63;MG -20 47;MH 9 168;MK 41.75 22;ML 17 -4;MM 22 98;MN 46 105
MO 22.25 113.5;MP 15.25 145.75;MQ 14.75 -61;MR 20 -12;MS 16.75 -62.25;MT 35.75 14.5;MU -20.25 57.5
MV 3.25 73;MW -13.5 34;MX 23 -102;MY 2.5 112.5;MZ -18.25 35;NA -22 17;NC -21.5 165.5;NE 16 8
NF -29 168;NG 10 8;NI 13 -85;NL 52.5 5.75;NO 62 10;NP 28 84;NR -0.5 167;NU -19 -169.75;NZ -41 174
OM 21 57;PA 9 -80;PE -10 -76;PF -15 -140;PG -6 147;PH 13 122;PK 30 70;PL 52 20;PM 46.75 -56.25
PR 18.25 -66.5;PS 32 35.25;PT 39.5 -8;PW 7.5 134.5;PY -23 -58;QA 25.5 51.25;RE -21 55.5;RO 46 25
RS 44 21;RU 60 100;RW -2 30;SA 25 45;SB -8 159;SC -4.5 55.75;SD 15 30;SE 62 15;SG 1.25 103.75
SH -16 -5.75;SI 46 15;SK 48.75 19.5;SL 8.5 -11.5;SM 43.75 12.5;SN 14 -14;SO 10 49;SR 4 -56;SS 8 30
ST 1 7;SV 13.75 -89;SX 18 -63;SY 35 38;SZ -26.5 31.5;TC 21.75 -71.5;TD 15 19;TG 8 1.25;TH 15 100
TJ 39 71;TK -9 -172;TL -8.75 126;TM 40 60;TN 34 9;TO -20 -175;TR 39 35;TT 11 -61;TV -8 178
TW 23.5 121;TZ -6 35;UA 49 32;UG 1 32;US 38 -97;UY -33 -56;UZ 41 64;VA 42 12.5;VC 13.25 -61.25
VE 8 -66;VG 18.5 -64.5;VI 18.25 -64.75;VN 16 106;VU -16 167;WF -13.25 -176.25;WS -13.5 -172.25
XK 42.5 21;YE 15 48;YT -12.75 45.25;ZA -29 24;ZM -15 30;ZW -20 30
"""
_OTHERS = {"US": (37.751, -97.822), "CN": (34.7732, 113.722)}
_PEOPLE = {
    "AU": (-34.0, 149.0), "BR": (-22.0, -46.0), "CA": (45.0, -76.0), "CD": (-4.0, 15.0),
    "CN": (33.0, 115.0), "DZ": (36.0, 3.0), "EG": (30.0, 31.0), "GL": (64.0, -52.0),
    "ID": (-6.0, 107.0), "KZ": (43.0, 77.0), "LY": (33.0, 13.0), "MY": (3.0, 102.0),
    "MZ": (-26.0, 33.0), "PF": (-18.0, -150.0), "RU": (56.0, 38.0), "US": (39.0, -86.0),
}  # fmt: skip
_SMALL = frozenset({"AD", "BH", "BM", "GI", "HK", "LI", "LU", "MC", "MO", "MT", "SG", "SM", "VA"})
"""Countries that are no larger than what a city is known to."""
AT_POINT_DEGREES = 0.02
"""How near to a country's point a record means that point."""


def _read() -> dict[str, tuple[float, float]]:
    rows = (row.split() for row in _POINTS.replace("\n", ";").strip(";").split(";"))
    return {code: (float(latitude), float(longitude)) for code, latitude, longitude in rows}


_BY_CODE = _read()


def country_place(code: str) -> Place | None:
    """The point that stands for a country's people; None for what is none."""
    point = _PEOPLE.get(code) or _BY_CODE.get(code)
    return None if point is None else Place(*point, country=code, exact=code in _SMALL)


def is_country_point(code: str, latitude: float, longitude: float) -> bool:
    """Whether a record at this point says no more than the country."""
    if code in _SMALL:
        return False
    points = (_BY_CODE.get(code), _OTHERS.get(code))
    return any(
        point is not None
        and abs(point[0] - latitude) <= AT_POINT_DEGREES
        and abs(point[1] - longitude) <= AT_POINT_DEGREES
        for point in points
    )
