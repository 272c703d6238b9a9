package peers

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A plot is one measure in all modes and sizes, as bars on a scale of tens.
type plot struct {
	file, title string
	measure     measure
}

var plots = []plot{
	{"bench-first-sync.svg", "First sync, from the start of the process", firstStart},
	{"bench-change.svg", "One endpoint of one service changed", oneChange},
	{"bench-memory.svg", "Memory at rest", memoryRest},
	{"bench-connect.svg", "One connection to the last service", latencyLast},
}

// A bar is one figure of a plot.
type bar struct {
	figure figure
	color  string
}

// A group is the bars of one size in one mode.
type group struct {
	name string
	bars []bar
}

// legend is what colors mean.
var legend = []struct{ peer, name, color string }{
	{ours, "svcproxy", "#1f6feb"},
	{oursFiles, "svcproxy, from files", "#8fb8f5"},
	{theirs, "kube-proxy", "#c9660c"},
}

// groups returns the bars of a measure, of what was measured.
func (r *report) groups(m measure) []group {
	var all []group
	for _, mode := range modes {
		for _, s := range r.plan.sizes[mode] {
			g := group{name: fmt.Sprintf("%s, %s × %d", mode, thousands(s.services), s.endpoints)}
			for _, l := range legend {
				if f := r.figure(mode, s, l.peer, m); f.rounds > 0 && f.value > 0 {
					g.bars = append(g.bars, bar{f, l.color})
				}
			}
			if len(g.bars) > 0 {
				all = append(all, g)
			}
		}
	}
	return all
}

// Sizes of a picture, in its units.
const (
	barHeight  = 14
	groupGap   = 12
	leftMargin = 230
	barWidth   = 460 // of the whole scale
	plotWidth  = leftMargin + barWidth + 130
	topMargin  = 70
)

// decades returns the powers of ten between which all bars are.
func decades(all []group) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, g := range all {
		for _, b := range g.bars {
			low, high = min(low, b.figure.value), max(high, b.figure.value)
		}
	}
	if math.IsInf(low, 0) {
		return 0, 1
	}
	low, high = math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	return low, max(high, low+1)
}

// svg draws the plot.
func (p plot) svg(r *report) string {
	all := r.groups(p.measure)
	low, high := decades(all)
	at := func(v float64) float64 { return leftMargin + barWidth*(math.Log10(v)-low)/(high-low) }
	height := topMargin + 20
	for _, g := range all {
		height += barHeight*len(g.bars) + groupGap
	}
	var w strings.Builder
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", plotWidth, height)
	fmt.Fprintf(&w, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&w, `<text x="12" y="22" font-size="15">%s</text>`+"\n", html.EscapeString(p.title))
	drawLegend(&w)
	for d := low; d <= high; d++ {
		v := math.Pow(10, d)
		fmt.Fprintf(&w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#dddddd"/>`+"\n", at(v), at(v), topMargin-6, height-16)
		fmt.Fprintf(&w, `<text x="%.1f" y="%d" text-anchor="middle" fill="#666666">%s</text>`+"\n", at(v), height-4, tickOf(p.measure, v))
	}
	y := topMargin
	for _, g := range all {
		fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", leftMargin-8, y+barHeight*len(g.bars)/2+4, html.EscapeString(g.name))
		for _, b := range g.bars {
			width := max(1, at(b.figure.value)-leftMargin)
			fmt.Fprintf(&w, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", leftMargin, y, width, barHeight-2, b.color)
			fmt.Fprintf(&w, `<text x="%.1f" y="%d">%s</text>`+"\n", leftMargin+width+5, y+barHeight-4, html.EscapeString(b.figure.show(p.measure)))
			y += barHeight
		}
		y += groupGap
	}
	fmt.Fprintln(&w, "</svg>")
	return w.String()
}

func drawLegend(w *strings.Builder) {
	for i, l := range legend {
		x := leftMargin + 170*i
		fmt.Fprintf(w, `<rect x="%d" y="36" width="12" height="12" fill="%s"/>`+"\n", x, l.color)
		fmt.Fprintf(w, `<text x="%d" y="46">%s</text>`+"\n", x+17, html.EscapeString(l.name))
	}
}

// tickOf writes a power of ten of a scale; that of memory has powers of ten of bytes.
func tickOf(m measure, v float64) string {
	if m.bytes() {
		return fmt.Sprintf("%.3g MB", v/1e6)
	}
	return seconds(v)
}
