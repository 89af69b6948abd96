package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Plot is a chart of lines. A library would bring fonts, PDF and TeX along for this one kind.
type Plot struct {
	File  string `json:"file"`
	Title string `json:"title"`
	X     string `json:"x"`
	Y     string `json:"y"`
	Lines []Line `json:"lines"`
}

// Line is one line of a plot.
type Line struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is one of a line's.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// mostPoints is how many points of a line are drawn, more than a reader can distinguish.
const mostPoints = 400

// thin leaves out points of a line that has more than can be seen, at equal distances. The first
// and the last stay.
func (l *Line) thin() {
	n := len(l.Points)
	if n <= mostPoints {
		return
	}
	kept := make([]Point, 0, mostPoints)
	for i := range mostPoints {
		kept = append(kept, l.Points[i*(n-1)/(mostPoints-1)])
	}
	l.Points = kept
}

// Places in the picture, in its own units.
const (
	plotWidth, plotHeight       = 760, 380
	plotLeft, plotRight         = 70, 740
	plotTop, plotBottom         = 50, 320
	plotLegend, plotLegendWidth = 36, 180
)

// plotColours are distinguishable for most colour-blind people, too (Okabe and Ito's).
func plotColours() []string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
}

// step returns a round distance between marks so that there are about five of them.
func step(top float64) float64 {
	if top <= 0 || math.IsInf(top, 0) || math.IsNaN(top) {
		return 1
	}
	raw := top / 5
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*unit >= raw {
			return m * unit
		}
	}
	return 10 * unit
}

// SVG writes the plot. Both axes begin at 0.
func (p Plot) SVG(w io.Writer) error {
	maxX, maxY := 0.0, 0.0
	for _, l := range p.Lines {
		for _, pt := range l.Points {
			maxX, maxY = max(maxX, pt.X), max(maxY, pt.Y)
		}
	}
	stepX, stepY := step(maxX), step(maxY)
	topX, topY := stepX*max(1, math.Ceil(maxX/stepX-1e-9)), stepY*max(1, math.Ceil(maxY/stepY-1e-9))
	x := func(v float64) float64 { return plotLeft + v/topX*(plotRight-plotLeft) }
	y := func(v float64) float64 { return plotBottom - v/topY*(plotBottom-plotTop) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	text := func(px, py float64, anchor, more, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", px, py, anchor, more, escape(s))
	}
	text(plotLeft, 20, "start", ` font-size="14" font-weight="bold"`, p.Title)
	for v := 0.0; v <= topX+stepX/2; v += stepX {
		fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#ddd"/>`+"\n", x(v), plotTop, plotBottom)
		text(x(v), plotBottom+18, "middle", "", Mark(v))
	}
	for v := 0.0; v <= topY+stepY/2; v += stepY {
		fmt.Fprintf(&b, `<path d="M%d %.1f H%d" stroke="#ddd"/>`+"\n", plotLeft, y(v), plotRight)
		text(plotLeft-8, y(v)+4, "end", "", Mark(v))
	}
	text((plotLeft+plotRight)/2, plotBottom+42, "middle", "", p.X)
	text(18, (plotTop+plotBottom)/2, "middle", fmt.Sprintf(` transform="rotate(-90 18 %d)"`, (plotTop+plotBottom)/2), p.Y)
	for i, l := range p.Lines {
		colour := plotColours()[i%len(plotColours())]
		var d strings.Builder
		for j, pt := range l.Points {
			fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(j, 1)], x(pt.X), y(pt.Y))
		}
		if d.Len() > 0 {
			fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", d.String(), colour)
		}
		at := float64(plotLeft + i*plotLegendWidth)
		fmt.Fprintf(&b, `<path d="M%.1f %d h20" stroke="%s" stroke-width="2"/>`+"\n", at, plotLegend, colour)
		text(at+26, plotLegend+4, "start", "", l.Name)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Mark prints a value at an axis.
func Mark(v float64) string {
	if math.Abs(v) >= 10000 {
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*1e6)/1e6)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a builder takes everything
	return b.String()
}

// Shares turns moments, ascending, into a line of how many per cent of n had come by then, in few
// points.
func Shares(moments []float64, n int) []Point {
	const most = 200
	out := []Point{{0, 0}}
	every := max(1, len(moments)/most)
	for i, t := range moments {
		if i%every == 0 || i == len(moments)-1 {
			out = append(out, Point{t, 100 * float64(i+1) / float64(n)})
		}
	}
	return out
}

// Sorted returns a sorted copy.
func Sorted(values []float64) []float64 { return slices.Sorted(slices.Values(values)) }

// Quantile returns the q-th quantile of values; 0 if there are none.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	values = slices.Sorted(slices.Values(values))
	return values[min(int(q*float64(len(values))), len(values)-1)]
}
