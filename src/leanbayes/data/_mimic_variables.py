"""Measurements of MIMIC-III: which items they are recorded under, and which values are possible."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One measurement.

    Attributes:
        name: Its name, with the unit if it has one.
        items: ITEMID numbers of CHARTEVENTS and LABEVENTS.
        low: Values must be above.
        high: Values must not be above.
        fahrenheit: Items recorded in degrees Fahrenheit.
        fraction: Items recorded as a part of one where others are in percent (or either).
    """

    name: str
    items: tuple[int, ...]
    low: float = 0.0
    high: float = 1e6
    fahrenheit: tuple[int, ...] = ()
    fraction: tuple[int, ...] = ()


# Items below 20,000 come from the CareVue system, those from 220,000 from MetaVision; those around 51,000 are
# laboratory tests.
VARIABLES: tuple[Variable, ...] = (
    Variable("heart rate (1/min)", (211, 220045), high=300),
    Variable("systolic blood pressure (mmHg)", (51, 442, 455, 6701, 220179, 220050, 225309), high=400),
    Variable("diastolic blood pressure (mmHg)", (8368, 8440, 8441, 8555, 220180, 220051, 225310), high=300),
    Variable("mean blood pressure (mmHg)", (52, 443, 456, 6702, 220052, 220181, 225312), high=300),
    Variable("respiratory rate (1/min)", (615, 618, 220210, 224690), high=70),
    Variable("temperature (C)", (676, 678, 223761, 223762), low=25, high=45, fahrenheit=(678, 223761)),
    Variable("oxygen saturation (%)", (646, 220277), high=100),
    Variable("inspired oxygen (%)", (190, 3420, 223835), low=20, high=100, fraction=(190, 223835)),
    Variable("coma scale: eyes", (184, 220739), high=4),
    Variable("coma scale: speech", (723, 223900), high=5),
    Variable("coma scale: movement", (454, 223901), high=6),
    Variable("glucose (mg/dL)", (807, 811, 1529, 3744, 3745, 220621, 225664, 226537, 50809, 50931), high=2000),
    Variable("pH", (780, 223830, 50820), low=6, high=8.5),
    Variable("lactate (mmol/L)", (50813,), high=50),
    Variable("creatinine (mg/dL)", (50912,), high=150),
    Variable("urea nitrogen (mg/dL)", (51006,), high=300),
    Variable("sodium (mmol/L)", (50824, 50983), high=200),
    Variable("potassium (mmol/L)", (50822, 50971), high=30),
    Variable("bicarbonate (mmol/L)", (50882,), high=10000),
    Variable("bilirubin (mg/dL)", (50885,), high=150),
    Variable("haematocrit (%)", (50810, 51221), high=100),
    Variable("platelets (1000/uL)", (51265,), high=10000),
    Variable("white cells (1000/uL)", (51300, 51301), high=1000),
)
