package machine

// Palette colours text for a terminal, or leaves it alone when false.
type Palette bool

func (p Palette) wrap(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Bold is s in bold.
func (p Palette) Bold(s string) string { return p.wrap("1", s) }

// Dim is s in faint letters.
func (p Palette) Dim(s string) string { return p.wrap("2", s) }

// Green is s in green: all is well.
func (p Palette) Green(s string) string { return p.wrap("32", s) }

// Red is s in red: something is wrong.
func (p Palette) Red(s string) string { return p.wrap("31", s) }

// Alert is s in white on red: look here first.
func (p Palette) Alert(s string) string { return p.wrap("1;37;41", s) }
