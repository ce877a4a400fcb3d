package batch

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// open reads the file, or begins it, and removes what a killed process or a power failure has left behind the
// last whole frame.
func (j *Journal) open() error {
	isNew, err := j.readHeader()
	if err == nil && isNew {
		err = j.writeHeader()
	}
	if err != nil {
		return err
	}
	j.seed = seedOf(j.jobID)
	if err := j.readFrames(); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.synced, j.told = j.size, j.size
	return nil
}

// readHeader reads the id and the size of the file. It reports whether the file has no frames, and no whole header.
func (j *Journal) readHeader() (isNew bool, err error) {
	if j.size, err = j.file.Seek(0, io.SeekEnd); err != nil {
		return false, err
	}
	head := make([]byte, min(j.size, int64(headerLen)))
	if _, err := j.file.ReadAt(head, 0); err != nil && err != io.EOF {
		return false, err
	}
	if isZero := len(bytes.Trim(head, "\x00")) == 0; isZero && j.size <= int64(headerLen) {
		return true, nil
	}
	known := min(len(head), len(magic))
	switch {
	case string(head[:known]) != magic[:known]:
		return false, errors.New("is no journal: give the path of one, or of a new file")
	case len(head) > len(magic) && head[len(magic)] > version:
		return false, fmt.Errorf("has version %d of the format, and this program knows %d: use a newer one", head[len(magic)], version)
	}
	end := headerLen - sumLen
	if len(head) < headerLen || binary.LittleEndian.Uint32(head[end:]) != crc32.Checksum(head[:end], castagnoli) {
		if j.size > int64(headerLen) {
			return false, damaged(0)
		}
		return true, nil
	}
	copy(j.jobID[:], head[len(magic)+1:])
	return false, nil
}

func (j *Journal) writeHeader() error {
	_, _ = rand.Read(j.jobID[:]) // never fails
	if err := j.file.Truncate(0); err != nil {
		return err
	}
	header := newHeader(j.jobID)
	_, err := j.file.WriteAt(header, 0)
	j.size = int64(len(header))
	return err
}

// damaged returns the error of a file with bytes that were on the disk and are no frame.
func damaged(at int64) error {
	return fmt.Errorf("is damaged at offset %d, and nothing was changed: restore a copy, or remove the file to begin with the first item", at)
}

// readFrames reads the whole file.
func (j *Journal) readFrames() error {
	r := j.reader(int64(headerLen), j.size)
	for {
		e, err := r.next()
		switch {
		case err == io.EOF:
			return nil
		case err == errBadFrame:
			return j.cut(r.at)
		case err != nil:
			return err
		case !j.has.add(&e):
			return damaged(e.at)
		}
	}
}

func (j *Journal) reader(at, end int64) *frameReader {
	return newFrameReader(j.file, j.seed, at, end)
}

// cut cuts the file at bytes that are no frame, unless they were on the disk, so that neither the end of a process
// nor a power failure has caused that. A later frame tells.
func (j *Journal) cut(at int64) error {
	r := j.reader(at, j.size)
	r.skip(1)
	for {
		e, err := r.next()
		switch {
		case err == io.EOF:
			j.size = at
			return j.file.Truncate(at)
		case err == errBadFrame:
			r.skip(1)
		case err != nil:
			return err
		case e.kind == kindSynced && e.at-int64(e.back) > at:
			return damaged(at)
		}
	}
}

// syncFolder puts the name of a new file on the disk.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil // NTFS does it by itself
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
