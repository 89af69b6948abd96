package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// untar returns the files of a tar by name, and all headers.
func untar(t *testing.T, data []byte) (map[string][]byte, []*tar.Header) {
	t.Helper()
	files, r := map[string][]byte{}, tar.NewReader(bytes.NewReader(data))
	var headers []*tar.Header
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], headers = body, append(headers, h)
	}
}

func TestWrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := Image{Names: []string{"example.org/a/b:1", "example.org/a/b:2"}, Entrypoint: []string{"/bin/p"}, Cmd: []string{"serve"}, Env: []string{"A=b"}}
	m.Add("/bin/p", program)
	m.Link("/bin/q", "p")
	m.Dir("/tmp", 0o1777)
	m.Text("/etc/passwd", "root:x:0:0::/:\n")
	var out, again bytes.Buffer
	if err := errors.Join(m.Write(&out), m.Write(&again)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same files made another image")
	}

	files, _ := untar(t, out.Bytes())
	for name, data := range files {
		if want, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want {
				t.Errorf("%s holds something else", name)
			}
		}
	}
	blob := func(digest string, into any) []byte {
		t.Helper()
		data, ok := files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")]
		if !ok {
			t.Fatalf("no blob %s", digest)
		}
		if into != nil {
			if err := json.Unmarshal(data, into); err != nil {
				t.Fatal(err)
			}
		}
		return data
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range index.Manifests {
		names = append(names, d.Annotations["io.containerd.image.name"])
	}
	if diff := cmp.Diff(m.Names, names); diff != "" {
		t.Error(diff)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(index.Manifests[0].Digest, &manifest)
	var config struct {
		Config struct{ Entrypoint, Cmd, Env []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	blob(manifest.Config.Digest, &config)
	if diff := cmp.Diff([]string{manifest.Layers[0].Digest}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(config.Config.Env, "A=b") || !slices.Equal(config.Config.Entrypoint, m.Entrypoint) || !slices.Equal(config.Config.Cmd, m.Cmd) {
		t.Errorf("config %+v", config.Config)
	}

	layer := blob(manifest.Layers[0].Digest, nil)
	if int64(len(layer)) != manifest.Layers[0].Size {
		t.Errorf("layer of %d bytes, said to be %d", len(layer), manifest.Layers[0].Size)
	}
	content, headers := untar(t, layer)
	var got []string
	for _, h := range headers {
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{
		"drwxr-xr-x bin/ ", "-rwxr--r-- bin/p ", "Lrwxrwxrwx bin/q p", "drwxr-xr-x etc/ ", "-rw-r--r-- etc/passwd ", "dtrwxrwxrwx tmp/ ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if string(content["bin/p"]) != "program" {
		t.Errorf("the program is %q", content["bin/p"])
	}
}

func TestWriteFileLeavesNothingHalf(t *testing.T) {
	dir := t.TempDir()
	m := Image{Names: []string{"a:1"}}
	m.Add("/x", filepath.Join(dir, "missing"))
	if err := m.WriteFile(filepath.Join(dir, "a.tar")); err == nil || !strings.Contains(err.Error(), "image a:1") {
		t.Errorf("a missing file: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v (%v)", left, err)
	}
	if err := (&Image{}).Write(io.Discard); err == nil {
		t.Error("an image without a name was written")
	}
}

func TestAddProgramBringsItsLibraries(t *testing.T) {
	sh, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	if sh, err = filepath.EvalSymlinks(sh); err != nil {
		t.Fatal(err)
	}
	m := Image{Names: []string{"sh:1"}}
	if err := m.AddProgram("/bin/bash", sh); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for dst, e := range m.entries {
		path := filepath.Join(root, dst)
		if e.source == "" {
			continue
		}
		data, err := os.ReadFile(e.source)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to run the program with nothing but what is in the image")
	}
	out, err := exec.Command("chroot", root, "/bin/bash", "-c", "echo it runs").CombinedOutput()
	if err != nil || string(out) != "it runs\n" {
		t.Errorf("in the image's files: %q, %v", out, err)
	}

	if err := m.AddProgram("/bin/x", filepath.Join(root, "none")); err == nil {
		t.Error("a missing program was added")
	}
	if _, _, err := locate("libnonesuch.so.1", []string{root, "/"}); err == nil || !strings.Contains(err.Error(), "libnonesuch.so.1") {
		t.Errorf("a missing library: %v", err)
	}
}
