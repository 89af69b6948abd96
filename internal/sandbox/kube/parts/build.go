package parts

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Builder builds programs that are missing.
type Builder struct {
	// Dir is where the programs are kept; see Dir.
	Dir string
	// Source is the root of a checkout, or empty if there is none; see Source.
	Source string
	// Out gets the progress.
	Out io.Writer
	// Terminal says that Out is one: progress then stays on one line.
	Terminal bool
}

// Build builds what is missing of the named programs, or of another version than the checkout
// wants. It returns at once if nothing is.
func (b *Builder) Build(ctx context.Context, names ...string) error {
	wanted, err := find(names)
	if err != nil {
		return err
	}
	missing, reasons := b.missing(wanted)
	if len(missing) == 0 {
		return nil
	}
	if b.Source == "" {
		_, err := Source()
		return fmt.Errorf("%s in %s: %w", strings.Join(reasons, ", "), b.Dir, err)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("%s in %s, and Go to build them: see https://go.dev/doc/install", strings.Join(reasons, ", "), b.Dir)
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return err
	}
	unlock, err := b.lock()
	if err != nil {
		return err
	}
	defer unlock()
	missing, _ = b.missing(wanted) // another process may have built them while this one waited
	var left time.Duration
	for _, p := range missing {
		left += p.typical
	}
	if len(missing) > 0 {
		fmt.Fprintf(b.Out, "building %d programs of Kubernetes into %s, once: about %s on two cores if nothing of them is compiled yet\n",
			len(missing), b.Dir, round(left))
	}
	for i, p := range missing {
		left -= p.typical
		if err := b.build(ctx, p, fmt.Sprintf("%d/%d", i+1, len(missing)), left); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) missing(wanted []Part) (missing []Part, reasons []string) {
	for _, p := range wanted {
		if ok, why := p.state(b.Dir, b.Source); !ok {
			missing = append(missing, p)
			reasons = append(reasons, p.Name+" "+why)
		}
	}
	return missing, reasons
}

func (b *Builder) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.Dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		fmt.Fprintf(b.Out, "another process is building into %s: waiting for it\n", b.Dir)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
	return func() { _ = f.Close() }, nil
}

// build compiles one program. after is how long those that follow take.
func (b *Builder) build(ctx context.Context, p Part, position string, after time.Duration) error {
	args := []string{"build", "-v"}
	if p.test {
		args = []string{"test", "-c", "-vet=off"} // vet would look at every dependency, for longer than the compiler
	}
	flags := []string{"-trimpath", "-mod=readonly", "-buildvcs=false"}
	tmp := filepath.Join(b.Dir, fmt.Sprintf(".%s.%d", p.Name, os.Getpid()))
	defer os.Remove(tmp)
	m := &meter{builder: b, name: p.Name, position: position, began: time.Now(), typical: p.typical, after: after}
	if !p.test {
		m.packages = b.stale(ctx, p, flags)
	}
	args = append(append(args, flags...), "-ldflags", strings.TrimSpace("-s -w "+p.flags), "-o", tmp, p.pkg)
	cmd := b.command(ctx, p, args...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	done := make(chan string)
	go func() { done <- m.follow(r) }()
	err := cmd.Run()
	_ = w.Close()
	said := <-done
	m.clear()
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: %w", p.Name, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.Name, err, said)
	}
	if err := os.Rename(tmp, filepath.Join(b.Dir, p.Name)); err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "  %5s  %s built in %s\n", position, p.Name, round(time.Since(m.began)))
	return nil
}

func (b *Builder) command(ctx context.Context, p Part, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.Source, p.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its compilers and removes its work
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// stale counts the packages that are not compiled yet. Zero means that it is unknown: the build is
// timed by experience then.
func (b *Builder) stale(ctx context.Context, p Part, flags []string) int {
	args := append([]string{"list", "-deps", "-f", "{{if .Stale}}x{{end}}"}, flags...)
	out, err := b.command(ctx, p, append(args, p.pkg)...).Output()
	if err != nil {
		return 0
	}
	return bytes.Count(out, []byte("x"))
}

// meter shows how far one build is.
type meter struct {
	builder        *Builder
	name, position string
	began          time.Time
	typical, after time.Duration
	packages       int
	compiled       atomic.Int64
}

// follow reads what the compiler says until it ends, and returns what is not progress.
func (m *meter) follow(r io.Reader) string {
	interval := 20 * time.Second
	if m.builder.Terminal {
		interval = time.Second
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		scan := bufio.NewScanner(r)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			lines <- scan.Text()
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var said []string
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return strings.Join(said[max(0, len(said)-40):], "\n")
			}
			if strings.Contains(line, " ") {
				said = append(said, line)
			} else {
				m.compiled.Add(1)
			}
		case <-tick.C:
			m.show()
		}
	}
}

func (m *meter) show() {
	elapsed := time.Since(m.began)
	text := fmt.Sprintf("  %5s  %s: %s", m.position, m.name, round(elapsed))
	n := int(m.compiled.Load())
	if m.packages > 0 {
		text += fmt.Sprintf(", %d of %d packages", min(n, m.packages), m.packages)
	}
	text += fmt.Sprintf(", about %s left", round(m.left(elapsed, n)+m.after))
	if m.builder.Terminal {
		fmt.Fprintf(m.builder.Out, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(m.builder.Out, text)
}

// left estimates the rest of this build: by its own speed once there is one, until then by
// experience.
func (m *meter) left(elapsed time.Duration, compiled int) time.Duration {
	const link = 3 * time.Second
	if m.packages > 0 && compiled*20 >= m.packages {
		return time.Duration(float64(elapsed)*float64(max(0, m.packages-compiled))/float64(compiled)) + link
	}
	return max(m.typical-elapsed, link)
}

func (m *meter) clear() {
	if m.builder.Terminal {
		fmt.Fprint(m.builder.Out, "\r\x1b[K")
	}
}

func round(d time.Duration) time.Duration {
	if d < time.Minute {
		return d.Round(time.Second)
	}
	return d.Round(5 * time.Second)
}

// Here returns a builder for this process: the cache directory, and the checkout that the working
// directory or the program itself is in, if any.
func Here(out io.Writer, terminal bool) (*Builder, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	var places []string
	if wd, err := os.Getwd(); err == nil {
		places = append(places, wd)
	}
	if exe, err := os.Executable(); err == nil {
		places = append(places, filepath.Dir(exe))
	}
	source, err := Source(places...)
	if err != nil {
		source = ""
	}
	return &Builder{Dir: dir, Source: source, Out: out, Terminal: terminal}, nil
}

// Program returns the path of a program that is there. If it is not, the error says how to get it.
func (b *Builder) Program(name string) (string, error) {
	path := filepath.Join(b.Dir, name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s is not in %s: `go run ./hack/kubebuild %s` in a checkout builds it", name, b.Dir, name)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
