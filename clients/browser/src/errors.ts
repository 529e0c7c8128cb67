/**
 * One tree of errors. Each has one sentence that a person can read; none has private data in it.
 *
 * SottovoceError
 * ├── UsageError        a value that cannot be used, an invitation that is none
 * ├── DataError         a history or a model that cannot be used
 * ├── ConsentError      something would leave this device against its owner's word
 * ├── MessageError      a message that must be rejected whole
 * │   ├── VersionMismatch   the other side speaks another version
 * │   └── Refused           the other side did not take what was sent, and says why
 * ├── KeyTrouble        a key that is not good, so that nothing was sealed or signed
 * ├── Unreachable       nobody answers, or not as a server of this federation would
 * ├── StorageTrouble    this device's store cannot be opened, read or written
 * └── Unsupported       this browser, or this library, cannot do what is asked for
 *
 * Names are written out: a library that is made small keeps no names of classes, and another part of
 * a page may know an error by its name alone.
 */

export class SottovoceError extends Error {
  override get name(): string {
    return "SottovoceError";
  }
}

export class UsageError extends SottovoceError {
  override get name(): string {
    return "UsageError";
  }
}

export class DataError extends SottovoceError {
  override get name(): string {
    return "DataError";
  }
}

export class ConsentError extends SottovoceError {
  override get name(): string {
    return "ConsentError";
  }
}

export class MessageError extends SottovoceError {
  override get name(): string {
    return "MessageError";
  }
}

export class VersionMismatch extends MessageError {
  override get name(): string {
    return "VersionMismatch";
  }
}

export class KeyTrouble extends SottovoceError {
  override get name(): string {
    return "KeyTrouble";
  }
}

export class Unreachable extends SottovoceError {
  override get name(): string {
    return "Unreachable";
  }
}

export class StorageTrouble extends SottovoceError {
  override get name(): string {
    return "StorageTrouble";
  }
}

export class Unsupported extends SottovoceError {
  override get name(): string {
    return "Unsupported";
  }
}
