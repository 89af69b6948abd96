package machine

import "testing"

func TestTyped(t *testing.T) {
	t.Chdir("/usr")
	for want, argv := range map[string][]string{
		"bin/hawser sandbox": {"/usr/bin/hawser", "sandbox"},
		"./hawser":           {"/usr/hawser"},
		"/bin/hawser down":   {"/bin/hawser", "down"},
		"":                   nil,
	} {
		if got := Typed(argv...); got != want {
			t.Errorf("%q: %q, want %q", argv, got, want)
		}
	}
}
