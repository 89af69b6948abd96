package sandbox

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Print writes the matrix as a table: a row a source, a column a target, a letter for each protocol
// that got through. What differs from the policies is marked and explained below.
func (m *Matrix) Print(w io.Writer, colour bool) {
	paint := machine.Palette(colour)
	header := make([]string, len(m.Targets))
	width := len("from \\ to")
	for _, s := range m.Sources {
		width = max(width, len(s))
	}
	for i, t := range m.Targets {
		header[i] = t
		for _, p := range m.Probes {
			if p.To == t && p.Port != 0 {
				header[i] = fmt.Sprintf("%s:%d", t, p.Port)
				break
			}
		}
	}
	fmt.Fprintf(w, "\n  %-*s", width, "from \\ to")
	for _, h := range header {
		fmt.Fprintf(w, "  %s", paint.Bold(h))
	}
	fmt.Fprintln(w)
	for _, from := range m.Sources {
		fmt.Fprintf(w, "  %s%s", paint.Bold(from), strings.Repeat(" ", width-len(from)))
		for i, to := range m.Targets {
			text, plain := m.cell(from, to, paint)
			pad := max(0, utf8.RuneCountInString(header[i])-plain)
			fmt.Fprintf(w, "  %s%s", text, strings.Repeat(" ", pad))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\n  %s reached by %sCP, %sDP, %sCMP echo (4 or 6: only over that IP version)   %s denied",
		paint.Green("●"), paint.Green("T"), paint.Green("U"), paint.Green("I"), paint.Dim("·"))
	fmt.Fprintf(w, "   %s not as the policies say\n", paint.Alert("!"))
	summary := fmt.Sprintf("%d probes in %s: %d reached, %d denied, ", len(m.Probes), took(time.Duration(m.Took)), m.Reached, m.Denied)
	if m.Unexpected == 0 {
		fmt.Fprintf(w, "  %s%s\n", summary, paint.Green("all as the policies say"))
		return
	}
	fmt.Fprintf(w, "  %s%s\n", summary, paint.Red(fmt.Sprintf("%d not as the policies say:", m.Unexpected)))
	const most = 20
	shown := 0
	for _, p := range m.Probes {
		if p.AsExpected() {
			continue
		}
		if shown++; shown > most {
			fmt.Fprintf(w, "    and %d more (see -o json)\n", m.Unexpected-most)
			break
		}
		is, want := "was denied", "allowed"
		if !p.Expected {
			is, want = "got through", "denied"
		}
		if p.Error != "" {
			is += " (" + p.Error + ")"
		}
		if p.Rule != "" {
			want += " (" + p.Rule + ")"
		}
		target := p.Address.String()
		if p.Port != 0 {
			target = fmt.Sprintf("%s port %d", target, p.Port)
		}
		fmt.Fprintf(w, "    %s -> %s %s %s: %s, the policies say %s\n", p.From, p.To, p.Protocol, target, is, want)
	}
}

// cell returns the text of a cell and its length without colours.
func (m *Matrix) cell(from, to string, paint machine.Palette) (text string, length int) {
	if from == to {
		return paint.Dim("-"), 1
	}
	for _, proto := range []Protocol{TCP, UDP, ICMP} {
		var reached, total, wrong int
		var families []string
		for _, p := range m.Probes {
			if p.From != from || p.To != to || p.Protocol != proto {
				continue
			}
			total++
			if p.Reached {
				reached++
				f := "6"
				if p.Address.Is4() {
					f = "4"
				}
				if !slices.Contains(families, f) {
					families = append(families, f)
				}
			}
			if !p.AsExpected() {
				wrong++
			}
		}
		if total == 0 {
			continue
		}
		s := "·"
		if reached > 0 {
			s = strings.ToUpper(string(proto[:1]))
			if reached < total {
				s += strings.Join(families, "")
			}
		}
		if wrong > 0 {
			s += "!"
		}
		length += utf8.RuneCountInString(s)
		switch {
		case wrong > 0:
			text += paint.Alert(s)
		case reached > 0:
			text += paint.Green(s)
		default:
			text += paint.Dim(s)
		}
	}
	return text, length
}
