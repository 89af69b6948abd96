package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Limits of the verifier: a chain of calls has stackLimit bytes. Before Linux 6.9 each function's
// part was rounded up to stackUnit, since then to less.
const (
	stackLimit = 512
	stackUnit  = 32
)

// TestStackFitsOlderKernels: every chain of calls of every program fits as the oldest kernel that
// is supported counts, not only as this one does.
func TestStackFitsOlderKernels(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"from_pod": loadFromPod, "to_pod": loadToPod, "from_overlay": loadFromOverlay, "from_host": loadFromHost, "from_netdev": loadFromNetdev,
		"to_netdev": loadToNetdev, "from_device": loadFromDevice, "to_device": loadToDevice, "sock": loadSock,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for entry, prog := range spec.Programs {
			frames, calls := stacks(prog.Instructions)
			if len(frames) == 0 {
				t.Fatalf("%s: no function was found", name)
			}
			depth, chain := deepest(entry, frames, calls)
			if depth > stackLimit {
				t.Errorf("%s: %v needs %d bytes of stack, %d are there", name, chain, depth, stackLimit)
			}
		}
	}
}

// stacks returns how many bytes of stack each function uses, and whom it calls.
func stacks(insns asm.Instructions) (frames map[string]int, calls map[string][]string) {
	frames, calls = map[string]int{}, map[string][]string{}
	fn := ""
	pointers := map[asm.Register]bool{} // hold the frame's end
	use := func(offset int64) {
		if offset < 0 {
			frames[fn] = max(frames[fn], int(-offset))
		}
	}
	for _, in := range insns {
		if s := in.Symbol(); s != "" && btf.FuncMetadata(&in) != nil {
			fn = s
			frames[fn] += 0
			clear(pointers)
		}
		if in.IsFunctionCall() {
			calls[fn] = append(calls[fn], in.Reference())
		}
		switch class := in.OpCode.Class(); {
		case class.IsLoad() && in.Src == asm.R10, class.IsStore() && in.Dst == asm.R10:
			use(int64(in.Offset))
		case class == asm.ALU64Class && in.OpCode.ALUOp() == asm.Mov:
			pointers[in.Dst] = in.OpCode.Source() == asm.RegSource && in.Src == asm.R10
		case class == asm.ALU64Class && in.OpCode.ALUOp() == asm.Add && in.OpCode.Source() == asm.ImmSource && pointers[in.Dst]:
			use(in.Constant)
			pointers[in.Dst] = false
		}
	}
	return frames, calls
}

// deepest returns the chain of calls from fn that uses the most stack.
func deepest(fn string, frames map[string]int, calls map[string][]string) (int, []string) {
	var below int
	var chain []string
	for _, callee := range calls[fn] {
		if d, c := deepest(callee, frames, calls); d > below {
			below, chain = d, c
		}
	}
	own := (max(frames[fn], 1) + stackUnit - 1) / stackUnit * stackUnit
	return own + below, append([]string{fn}, chain...)
}
