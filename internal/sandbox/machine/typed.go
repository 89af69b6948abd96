package machine

import (
	"os"
	"path/filepath"
	"strings"
)

// Typed is a command as a person in the working directory types it: the path of a program below it
// is relative.
func Typed(argv ...string) string {
	wd, err := os.Getwd()
	if err == nil && len(argv) > 0 {
		if rel, err := filepath.Rel(wd, argv[0]); err == nil && filepath.IsLocal(rel) {
			if !strings.ContainsRune(rel, filepath.Separator) {
				rel = "./" + rel // a shell looks elsewhere for a bare name
			}
			argv = append([]string{rel}, argv[1:]...)
		}
	}
	return strings.Join(argv, " ")
}
