package algorithms

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Nanodollars is the Unit of a Tier that counts money: a billionth of a dollar. The text of such a tier has
// its Limit in dollars, as in "$500/month" or "$0.50/day".
const Nanodollars = "nanodollars"

// MaxDollars is the greatest Limit of a Calendar of Nanodollars: nine million dollars. It leaves room below
// 2^53 for requests that cost more than their estimates.
const MaxDollars = 9_000_000 * dollar

const dollar = 1_000_000_000 // nanodollars

// mostLimit returns the greatest Limit that the tier may have.
func (t Tier) mostLimit() int64 {
	if t.Unit == Nanodollars && t.Algorithm == Calendar {
		return MaxDollars
	}
	return MaxLimit
}

// formatLimit returns a limit of the tier as its text has it.
func (t Tier) formatLimit(n int64) string {
	if t.Unit == Nanodollars {
		return formatDollars(n)
	}
	return strconv.FormatInt(n, 10)
}

// FormatAmount returns an amount of a unit for people. Nanodollars are dollars and cents, such as "$12.34",
// and below a dollar up to millionths, such as "$0.0021", rounded to the nearest. All other units are whole
// numbers without the name of the unit.
func FormatAmount(n int64, unit string) string {
	if unit != Nanodollars {
		return strconv.FormatInt(n, 10)
	}
	digit := int64(dollar / 100)
	if n > -dollar && n < dollar {
		digit = dollar / 1_000_000
	}
	cut := n % digit
	if n -= cut; cut >= digit/2 && n <= math.MaxInt64-digit {
		n += digit
	} else if cut <= -digit/2 && n >= math.MinInt64+digit {
		n -= digit
	}
	text := formatDollars(n)
	if !strings.Contains(text, ".") {
		text += ".00"
	}
	return text
}

// FormatUse returns how much of a limit is used, such as "3 of 5 used" or "$12.34 of $500.00 used".
func FormatUse(used, limit int64, unit string) string {
	return FormatAmount(used, unit) + " of " + FormatAmount(limit, unit) + " used"
}

// FormatUse returns how much of a limit of the tier is used, as the function FormatUse does.
func (t Tier) FormatUse(used, limit int64) string { return FormatUse(used, limit, t.Unit) }

// FormatCost returns an amount of the tier's unit with the name of the unit, such as "101 requests". Dollars
// have none.
func (t Tier) FormatCost(n int64) string {
	if t.Unit == Nanodollars {
		return t.FormatAmount(n)
	}
	return t.FormatAmount(n) + " " + t.normal().Unit
}

// FormatAmount returns an amount of the tier's unit as the function FormatAmount does.
func (t Tier) FormatAmount(n int64) string { return FormatAmount(n, t.Unit) }

// formatDollars returns nanodollars exactly: whole dollars such as "$500", and else at least the cents.
func formatDollars(n int64) string {
	sign, amount := "", uint64(n)
	if n < 0 {
		sign, amount = "-", -amount
	}
	text := fmt.Sprintf("%s$%d.%09d", sign, amount/dollar, amount%dollar)
	if whole, zeros := strings.CutSuffix(text, ".000000000"); zeros {
		return whole
	}
	cents := len(text) - len("0000000")
	return text[:cents] + strings.TrimRight(text[cents:], "0")
}

// parseDollars parses what formatDollars returns of an amount from 0 to MaxDollars, or any number of dollars
// with at most nine digits after the point.
func parseDollars(text string) (nanodollars int64, err error) {
	digits, _ := strings.CutPrefix(text, "$")
	whole, fraction, point := strings.Cut(digits, ".")
	if len(digits) == len(text) || !isNumber(whole) || point && !isNumber(fraction) {
		return 0, fmt.Errorf("%q is not an amount of dollars: write one from $0.000000001 to %s without commas, such as $500/month or $0.50/day", text, formatDollars(MaxDollars))
	}
	if fraction = strings.TrimRight(fraction, "0"); len(fraction) > 9 {
		return 0, fmt.Errorf("%q has %d digits after the point: write at most nine, because $0.000000001 is the least amount", text, len(fraction))
	}
	nanodollars, err = strconv.ParseInt(whole+fraction+strings.Repeat("0", 9-len(fraction)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is too large: write at most %s", text, formatDollars(MaxDollars))
	}
	return nanodollars, nil
}

// isNumber reports whether a text has digits alone.
func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
