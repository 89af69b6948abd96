package machine

import (
	"bufio"
	"os"
	"strings"
)

// Mount is a mount point of this process, and the kind of file system there.
type Mount struct{ Path, Kind string }

// MountsBelow lists the mounts below dir, outer ones first (see proc_pid_mountinfo(5)).
func MountsBelow(dir string) ([]Mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []Mount
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		before, after, _ := strings.Cut(scan.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) == 0 {
			continue
		}
		if path := unescape.Replace(fields[4]); strings.HasPrefix(path, dir+"/") {
			out = append(out, Mount{Path: path, Kind: kind[0]})
		}
	}
	return out, scan.Err()
}
