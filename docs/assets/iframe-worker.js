// From file:// a browser starts no worker, and the search needs one. Here its script runs in an empty
// frame of the page instead. On a server nothing of this is used.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((resolve, reject) => {
        document.documentElement.append(this.frame)
        const inside = this.frame.contentWindow
        inside.postMessage = (data) => this.#later(() => this.onmessage, data)
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inside)
        script.onerror = () => reject(new Error(`${url} cannot be read`))
        inside.document.documentElement.append(script)
      })
      this.ready.catch((error) => this.onerror?.(error))
    }

    postMessage(data) {
      this.ready.then((inside) => this.#later(() => inside.onmessage, data), () => {})
    }

    // As a worker would be told it: afterwards, and a copy, since either side changes what it has.
    #later(listener, data) {
      const copy = structuredClone(data)
      setTimeout(() => listener()?.({ data: copy }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
