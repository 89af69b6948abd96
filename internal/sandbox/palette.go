package sandbox

// palette colours text for a terminal, or leaves it alone when false.
type palette bool

func (p palette) wrap(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) bold(s string) string  { return p.wrap("1", s) }
func (p palette) dim(s string) string   { return p.wrap("2", s) }
func (p palette) green(s string) string { return p.wrap("32", s) }
func (p palette) red(s string) string   { return p.wrap("31", s) }
func (p palette) alert(s string) string { return p.wrap("1;37;41", s) }
