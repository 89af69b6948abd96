package bpf_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// TestConstants keeps numbers that are in C and in Go in step with each other.
func TestConstants(t *testing.T) {
	t.Parallel()
	number := func(file, pattern string) uint64 {
		source, err := os.ReadFile("lib/" + file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(source)
		if m == nil {
			t.Fatalf("%s has nothing like %q", file, pattern)
		}
		n, err := strconv.ParseUint(string(m[1]), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := number("maps.h", `max_entries, (\d+)\);[^}]*\} interfaces SEC`); n != datapath.MaxInterfaces {
		t.Errorf("the map of interfaces has %d entries, MaxInterfaces is %d", n, datapath.MaxInterfaces)
	}
	if n := number("clock.h", `bpf_ktime_get_coarse_ns\(\) >> (\d+);`); 1<<n != maps.TickNanoseconds {
		t.Errorf("the programs count ticks of 2^%d ns, Go of %d ns", n, maps.TickNanoseconds)
	}
}
